"""`flotilla up`, `gateway`, `worker` and `maintenance`: the processes of a fleet.

Every flag is a setting of the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from gateway.cli import config as config_command
from gateway.cli.command import examples
from gateway.cli.exit_codes import ExitCode
from gateway.cli.terminal import alone_in_foreground
from shared.platform.settings import (
    SettingsError,
    declared,
    load_all,
    load_settings,
    to_environment,
)

app = typer.Typer()

Config = config_command.Config
Host = Annotated[str | None, typer.Option(help="Address that the gateway listens on.")]
Port = Annotated[int | None, typer.Option(help="Port that the gateway listens on.")]
RedisUrl = Annotated[str | None, typer.Option(help="The fleet's Redis.")]
OwnRedisUrl = Annotated[
    str | None, typer.Option(help="A running Redis; without it one is started.")
]
KeysFile = Annotated[Path | None, typer.Option(help="API keys, `key` or `name:key`, one a line.")]
Model = Annotated[str | None, typer.Option(help="Hub id or folder; without it the demo model.")]
ModelName = Annotated[str | None, typer.Option(help="The model's name for clients.")]
Engine = Annotated[str | None, typer.Option(help="vllm, or simulated (for load tests).")]
EngineArgs = Annotated[str | None, typer.Option(help="vLLM's own arguments, as one string.")]
Pool = Annotated[str | None, typer.Option(help="Name of the pool; its workers share a queue.")]
LogLevel = Annotated[str | None, typer.Option(help="debug, info, warning or error.")]


@app.command(epilog=examples("flotilla up", "flotilla up --model Qwen/Qwen3-0.6B --workers 2"))
def up(
    model: Model = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of workers; 1 by default.")
    ] = None,
    autoscale: Annotated[
        str | None,
        typer.Option(metavar="MIN:MAX", help="Let the autoscaler decide the number of workers."),
    ] = None,
    engine: Engine = None,
    engine_args: EngineArgs = None,
    served_model_name: ModelName = None,
    host: Host = None,
    port: Port = None,
    redis_url: OwnRedisUrl = None,
    config: Config = None,
) -> None:
    """Run the whole fleet on this machine: Redis, gateway and workers. Ctrl-C stops it."""
    # Here, so that other commands and completion do not wait for it.
    from gateway.launcher.launcher_settings import LauncherSettings
    from gateway.launcher.preflight import check_and_run
    from shared.fleet.pools import load_pools

    if workers is not None and autoscale is not None:
        raise typer.BadParameter("use either --workers or --autoscale", param_hint="--autoscale")
    flags = {
        "config": config,
        "model": model,
        "engine": engine,
        "engine_args": engine_args,
        "served_model_name": served_model_name,
        "host": host,
        "port": port,
        "redis_url": redis_url,
    }
    with _usage_errors():
        load_all(**flags)  # of all processes: one that can't start would be found after minutes
        settings = load_settings(LauncherSettings, **flags)
        if settings.pools and (workers is not None or autoscale is not None):
            raise typer.BadParameter(
                f"{settings.config} has the numbers of workers, `workers` of each pool",
                param_hint="--autoscale" if workers is None else "--workers",
            )
        if autoscale is not None:
            flags["autoscale"] = f"{load_pools(settings).own.served_names[0]}={autoscale}"
            settings = load_settings(LauncherSettings, **flags)
        with alone_in_foreground():
            status = asyncio.run(check_and_run(settings, workers or 1))
    raise typer.Exit(status)


@app.command(
    epilog=examples("flotilla gateway", "flotilla gateway --host 0.0.0.0 --api-keys-file keys.txt")
)
def gateway(
    host: Host = None,
    port: Port = None,
    redis_url: RedisUrl = None,
    api_keys_file: KeysFile = None,
    log_level: LogLevel = None,
    config: Config = None,
) -> None:
    """Run the gateway: the OpenAI-compatible HTTP API."""
    _become(
        "gateway",
        "gateway",
        config=config,
        host=host,
        port=port,
        redis_url=redis_url,
        api_keys_file=api_keys_file,
        log_level=log_level,
    )


@app.command(
    epilog=examples(
        "flotilla worker",
        'flotilla worker --model Qwen/Qwen3-8B --engine-args "--max-num-seqs 256"',
    )
)
def worker(
    model: Model = None,
    served_model_name: ModelName = None,
    engine: Engine = None,
    engine_args: EngineArgs = None,
    pool: Pool = None,
    worker_id: Annotated[
        str | None, typer.Option(help="Id of this worker process, never used twice.")
    ] = None,
    worker_host: Annotated[str | None, typer.Option(help="Address of its health page.")] = None,
    worker_port: Annotated[int | None, typer.Option(help="Port of its health page.")] = None,
    redis_url: RedisUrl = None,
    log_level: LogLevel = None,
    config: Config = None,
) -> None:
    """Run one worker: it hosts vLLM and takes jobs."""
    _become(
        "worker",
        "worker",
        config=config,
        model=model,
        served_model_name=served_model_name,
        engine=engine,
        engine_args=engine_args,
        pool=pool,
        worker_id=worker_id,
        worker_host=worker_host,
        worker_port=worker_port,
        redis_url=redis_url,
        log_level=log_level,
    )


@app.command(
    epilog=examples(
        "flotilla maintenance", "flotilla maintenance --redis-url redis://10.0.0.5:6379/0"
    )
)
def maintenance(
    redis_url: RedisUrl = None, log_level: LogLevel = None, config: Config = None
) -> None:
    """Run the maintenance process: clean-up, the autoscaler. One is enough."""
    _become(
        "maintenance",
        "gateway.maintenance",
        config=config,
        redis_url=redis_url,
        log_level=log_level,
    )


@contextlib.contextmanager
def _usage_errors() -> Iterator[None]:
    """Prints a SettingsError, and ends the command."""
    try:
        yield
    except SettingsError as error:
        typer.echo(str(error), err=True)
        raise typer.Exit(ExitCode.USAGE) from error


def _become(process: str, module: str, **flags: Any) -> NoReturn:
    """Replace this process with the program, which gets the signals and has the exit status."""
    with _usage_errors():
        settings = load_settings(declared(process)[0], **flags)
    os.execve(  # noqa: S606
        sys.executable, [sys.executable, "-m", module], to_environment(process, settings)
    )

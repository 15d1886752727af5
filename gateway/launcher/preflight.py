"""What `flotilla up` checks before the supervisor starts Redis, the gateway and the workers."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from gateway.launcher import local_redis, ports, run_file
from gateway.launcher.console import Console, wants_colours
from gateway.launcher.fleet_redis import CannotStartError
from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.run_file import FOLDER
from gateway.launcher.service import USAGE_ERROR
from gateway.launcher.supervisor import EXIT_FAILED, Commands, Supervisor
from shared.fleet.pool import Pool
from shared.fleet.pools import load_pools
from shared.platform.settings import SettingsError, to_environment
from shared.store.health import refuse_unfit


async def check_and_run(
    settings: LauncherSettings,
    workers: int,
    *,
    commands: Commands | None = None,
    folder: Path = FOLDER,
) -> int:
    """Check everything, and run it until Ctrl-C; the process's exit status.

    `workers`: their number, unless `settings.autoscale` has a range or flotilla.yaml has pools.
    """
    try:
        pools = _pools(settings, workers)
    except ValueError as error:
        print(f"flotilla: {error}", file=sys.stderr)
        return USAGE_ERROR
    if "redis_url" in settings.model_fields_set:  # else it is our own
        await refuse_unfit(settings)
    if settings.log_format == "auto":  # people read it, though the processes write into pipes
        settings = settings.model_copy(update={"log_format": "pretty"})
    names = ["flotilla", "redis", "gateway", "maintenance", *_worker_names(pools)]
    console = Console(names, colours=wants_colours(to_environment("up")))
    try:
        _check_folder(folder)
        _check_gateway_port(settings)
        lock = await local_redis.lock_folder(folder)
    except (CannotStartError, local_redis.FolderInUseError) as error:
        print(f"flotilla: {error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        supervisor = Supervisor(settings, pools, commands or Commands(), folder, lock, console)
        return await supervisor.run()
    finally:
        os.close(lock)


def _pools(settings: LauncherSettings, workers: int) -> list[Pool]:
    """The pools to run, with their numbers of workers. Raises SettingsError."""
    loaded = load_pools(settings)
    if loaded.declared:
        return list(loaded.all)
    pool = loaded.all[0]
    if not settings.autoscale:
        return [
            pool.model_copy(update={"workers": workers, "min_workers": None, "max_workers": None})
        ]
    if "--served-model-name" in settings.engine_args:
        raise SettingsError(
            "to autoscale, the model's name must be known: FLOTILLA_SERVED_MODEL_NAME, "
            "not in FLOTILLA_ENGINE_ARGS"
        )
    if pool.limits is None or loaded.others:
        raise SettingsError(
            f"FLOTILLA_AUTOSCALE={settings.autoscale}: here it can only be "
            f"{pool.served_names[0]}=MIN:MAX; flotilla.yaml can describe several pools"
        )
    return [pool]


def _worker_names(pools: list[Pool]) -> Iterator[str]:
    for pool in pools:
        name = f"worker-{pool.name}" if len(pools) > 1 else "worker"
        yield from (f"{name}-{number + 1}" for number in range(pool.range[1]))


def _check_folder(folder: Path) -> None:
    run = run_file.running(folder)
    if run is not None:
        raise CannotStartError(
            f"another `flotilla up` already uses {folder}: pid {run.pid}, {run.gateway_url}"
        )


def _check_gateway_port(settings: LauncherSettings) -> None:
    problem = ports.listen_problem(settings.host, settings.port)
    if problem is None:
        return
    where = f"{settings.host}:{settings.port}"
    if problem.errno == errno.EADDRINUSE:
        other = ports.free_port("127.0.0.1", settings.port + 1)
        raise CannotStartError(
            f"{where} is in use; choose another with --port, for example --port {other}"
        )
    raise CannotStartError(f"the gateway can't listen on {where}: {problem.strerror}")

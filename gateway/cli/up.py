"""`flotilla up`: Redis, the gateway and the workers on this machine, in one terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from gateway.cli import local_redis, ports
from gateway.cli.console import Console, wants_colours
from gateway.cli.supervisor import EXIT_FAILED, CannotStartError, Commands, Supervisor
from shared.settings import Settings, to_environment

FOLDER = Path(".flotilla")


async def up(
    settings: Settings, workers: int, *, commands: Commands | None = None, folder: Path = FOLDER
) -> int:
    """Run everything until Ctrl-C; the process's exit status."""
    names = ["flotilla", "redis", "gateway", *(f"worker-{n + 1}" for n in range(workers))]
    console = Console(names, colours=wants_colours(to_environment(settings)))
    try:
        _check_gateway_port(settings)
        lock = await local_redis.lock_folder(folder)
    except (CannotStartError, local_redis.FolderInUseError) as error:
        print(f"flotilla: {error}", file=sys.stderr)
        return EXIT_FAILED
    try:
        supervisor = Supervisor(settings, workers, commands or Commands(), folder, lock, console)
        return await supervisor.run()
    finally:
        os.close(lock)


def _check_gateway_port(settings: Settings) -> None:
    problem = ports.listen_problem(settings.host, settings.port)
    if problem is not None:
        other = ports.free_port("127.0.0.1", settings.port + 1)
        raise CannotStartError(
            f"the gateway can't listen on {settings.host}:{settings.port} "
            f"({problem.strerror}); another port: FLOTILLA_PORT={other} make up"
        )

"""`python -m gateway.offline`: a local fleet, until the process that has started it ends it.

A line of JSON on stdin says how: the pid of that process, the folder, the number of workers, flags.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from gateway.launcher.launcher_settings import LauncherSettings
from gateway.launcher.preflight import check_and_run
from shared.platform import process_start
from shared.platform.settings import load_settings

_CHECK_S = 0.5


async def _serve(owner: int, folder: str, workers: int, flags: dict[str, Any]) -> int:
    watch = asyncio.create_task(_end_with(owner), name="end with the owner")
    try:
        return await check_and_run(_settings(flags), workers, folder=Path(folder))
    finally:
        watch.cancel()


async def _end_with(owner: int) -> None:
    """Stop this process once its owner has ended, however that ended."""
    # Not by a signal from the kernel at its end: that would come at the end of a thread, too.
    while os.getppid() == owner:  # noqa: ASYNC110 - it's another process
        await asyncio.sleep(_CHECK_S)
    os.kill(os.getpid(), signal.SIGTERM)


def _settings(flags: dict[str, Any]) -> LauncherSettings:
    """The settings without `redis_url`: what names a Redis is meant for another fleet."""
    settings = load_settings(LauncherSettings, **flags)
    kept = {name: value for name, value in settings if name != "redis_url"}
    return LauncherSettings.model_construct(settings.model_fields_set - {"redis_url"}, **kept)


if __name__ == "__main__":
    process_start.prepare()
    sys.exit(asyncio.run(_serve(**json.loads(sys.stdin.readline()))))

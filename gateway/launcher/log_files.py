"""The log files of one `flotilla up`: kept small, and kept until the end of the next run.

Beside `worker-1.log` there may be `worker-1.log.1`: what it had before it became too large, or that
of the run before.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from pathlib import Path

_MOST_BYTES = 64 << 20
_LOOK_S = 5.0


def begin(folder: Path) -> Path:
    """The folder for a new run's logs. Those of the run before get other names."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for old in folder.glob("*.log.1"):
        old.unlink()
    for log in folder.glob("*.log"):
        set_aside(log)
    return folder


def set_aside(log: Path) -> None:
    """Give a log another name, if there is one."""
    with contextlib.suppress(FileNotFoundError):
        log.rename(_older(log))


async def keep_small(folder: Path) -> None:
    """Look at the logs in the folder of a run until cancellation."""
    while True:
        await asyncio.sleep(_LOOK_S)
        await asyncio.to_thread(_cut, folder)


def _cut(folder: Path) -> None:
    for log in (*folder.glob("*.log"), *folder.glob("logs/*.log")):
        with contextlib.suppress(OSError):  # no room on the disk: then it does not grow either
            if log.stat().st_size > _MOST_BYTES:
                # Processes have it open and append to it, so it is copied, not renamed.
                shutil.copy(log, _older(log))
                os.truncate(log, 0)


def _older(log: Path) -> Path:
    return log.with_name(f"{log.name}.1")

"""The file by which other commands in the folder of a running `flotilla up` find its fleet.

Its Redis has another socket after every start.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple, TextIO

FOLDER = Path(".flotilla")
_NAME = "run.json"


@contextlib.contextmanager
def written(folder: Path, *, redis_url: str, gateway_url: str) -> Iterator[None]:
    """The file exists, locked, during this context. Only its owner can read it: it may hold a
    password.
    """
    path = folder / _NAME
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        run = {"pid": os.getpid(), "redis_url": redis_url, "gateway_url": gateway_url}
        file.write(json.dumps(run) + "\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


class Running(NamedTuple):
    """A running `flotilla up`."""

    pid: int
    redis_url: str
    gateway_url: str


def running(folder: Path = FOLDER) -> Running | None:
    """The running `flotilla up` of `folder`, if this user has started one there."""
    try:
        with (folder / _NAME).open() as file:
            if _is_own(file) and _is_locked(file):
                run = json.load(file)
                return Running(run["pid"], str(run["redis_url"]), str(run["gateway_url"]))
    except (OSError, ValueError, LookupError, TypeError):
        pass
    return None


def _is_own(file: TextIO) -> bool:
    """Whether only this user can have written it: commands send the API key to its address."""
    stat = os.fstat(file.fileno())
    return stat.st_uid == os.getuid() and not stat.st_mode & 0o077


def _is_locked(file: TextIO) -> bool:
    """Whether the process that wrote the file lives: its id may be another's by now."""
    try:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False

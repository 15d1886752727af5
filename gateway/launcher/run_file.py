"""The file by which other commands in the folder of a running `flotilla up` find its fleet.

Its Redis has another socket after every start.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(".flotilla")
_NAME = "run.json"


@contextlib.contextmanager
def written(folder: Path, *, redis_url: str, gateway_url: str) -> Iterator[None]:
    """The file exists during this context. Only its owner can read it: it may hold a password."""
    path = folder / _NAME
    text = json.dumps({"pid": os.getpid(), "redis_url": redis_url, "gateway_url": gateway_url})
    path.unlink(missing_ok=True)
    path.touch(mode=0o600)
    path.write_text(text + "\n")
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
    """The running `flotilla up` of `folder`, if there is one."""
    try:
        run = json.loads((folder / _NAME).read_text())
        os.kill(run["pid"], 0)
        return Running(run["pid"], str(run["redis_url"]), str(run["gateway_url"]))
    except (OSError, ValueError, LookupError, TypeError):
        return None

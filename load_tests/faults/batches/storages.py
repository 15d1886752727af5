"""The storages of a run, which can be taken away and brought back with what is in them."""

from __future__ import annotations

import contextlib
import signal
import socket
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from load_tests.harness.errors import RunError
from tests.harness.fleet import Stack
from tests.harness.processes import python_command
from tests.harness.servers import free_port
from tests.harness.waiting import wait_for

BUCKET = "files"
REGION = "us-east-1"
HAS_S3 = find_spec("moto") is not None
NO_S3 = (
    "the storage s3 needs moto (.venv/bin/pip install -c compose/constraints.txt -e '.[s3]'); "
    "--storage folder does not"
)
AWAY, BACK = signal.SIGUSR1, signal.SIGUSR2
"""Signals to s3_server.py. That is not imported: vLLM can't start in a process that has Flask."""


class RunStorage(Protocol):
    """A storage for one run."""

    url: str
    """The setting `storage_url`."""
    environment: Mapping[str, str]
    """Variables of all processes that use it."""

    def take_away(self) -> None:
        """From now on it can't be reached."""

    def bring_back(self) -> None:
        """It can be reached again, and has what it had."""


class FolderStorage:
    """A folder; away, it is an empty one, as a volume that is not mounted any more."""

    environment: Mapping[str, str] = {}

    def __init__(self, folder: Path) -> None:
        self.url = str(folder)
        self._folder = folder
        self._away = folder.with_name(f"{folder.name}-away")
        self._times = 0

    def take_away(self) -> None:
        """Move it to another place."""
        self._folder.rename(self._away)

    def bring_back(self) -> None:
        """Move it back; what was written meanwhile is somewhere else."""
        while self._away.exists():
            self._times += 1
            with contextlib.suppress(FileNotFoundError):  # nothing was written
                self._folder.rename(self._folder.with_name(f"{self._folder.name}-{self._times}"))
            with contextlib.suppress(OSError):  # something was written just now
                self._away.rename(self._folder)


class S3Storage:
    """moto's S3; away, nothing listens at its port."""

    def __init__(self, stack: Stack) -> None:
        """Start the server. Raises RunError."""
        if not HAS_S3:
            raise RunError(NO_S3)
        self._port = free_port()
        self.url = f"s3://{BUCKET}/fleet"
        self.environment: Mapping[str, str] = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self._port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": REGION,
        }
        command = python_command("load_tests.faults.batches.s3_server", self._port)
        self._process = stack.program("s3", command)
        wait_for(self._listens, "S3 is ready", processes=[self._process])

    def take_away(self) -> None:
        """Close its port."""
        self._process.stop(AWAY)
        wait_for(lambda: not self._listens(), "S3 is away", processes=[self._process])

    def bring_back(self) -> None:
        """Open its port again."""
        self._process.stop(BACK)
        wait_for(self._listens, "S3 is back", processes=[self._process])

    def _listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), 1.0).close()
        except OSError:
            return False
        return True

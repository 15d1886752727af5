"""Processes that are forked from one that has imported everything: they start in milliseconds.

A gateway or a worker takes a second of CPU to import its modules; the tests start hundreds.
"""

from __future__ import annotations

import atexit
import functools
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from load_tests.faults.kills.forked_processes import ForkedProcesses

MODULES = frozenset({"gateway", "worker"})
"""What can be started this way."""
_POLL_S = 0.01


@functools.cache
def _forked() -> ForkedProcesses:
    """Return this test process's fork server; it ends with the test process."""
    processes = ForkedProcesses(Path(tempfile.mkdtemp(prefix="flotilla-tests-")))
    atexit.register(processes.close)
    return processes


class ForkedPopen:
    """A running process, with the part of Popen's interface that the tests use."""

    def __init__(self, module: str, environment: Mapping[str, str], log: Path) -> None:
        """Start `module`, one of MODULES, with these variables. Its output goes to `log`."""
        self._process = _forked().start(module, module, log, environment)
        self.pid = self._process.pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None:
            _forked().poll()
            self.returncode = _forked().ended.get(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        until = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(self._process.name, timeout or 0.0)
            time.sleep(_POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            _forked().signal(self._process, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

"""Workers and gateways that a fork server starts; see fork_server.py."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from load_tests.harness.errors import ProcessError

_STOP_S = 15.0
_POLL_S = 0.01


class ForkedProcesses:
    """The connection to a fork server. Its processes end when it is closed. Thread-safe."""

    def __init__(self, folder: Path, options: Sequence[str] = ()) -> None:
        """Start the fork server with these options; see fork_server.py."""
        self.ended: dict[int, int] = {}
        """Exit status of each process that has ended, by process id."""
        self._lock = threading.Lock()
        self._log = folder / "fork_server.log"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "load_tests.harness.fork_server", *options],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._read()

    def start(
        self, main: str, log: Path, environment: Mapping[str, str], descriptors: int | None = None
    ) -> ForkedPopen:
        """Start a `worker` or a `gateway` with these variables; its output goes to `log`.

        `descriptors`: its limit of open files.
        """
        command = {"start": main, "environment": dict(environment), "log": str(log)}
        return ForkedPopen(self, int(self.send({**command, "descriptors": descriptors})["pid"]))

    def poll(self) -> None:
        """Bring `ended` up to date."""
        self.send({})

    def generated_tokens(self) -> int:
        """Return how many tokens the engines of all workers have generated."""
        return int(self.send({"tokens": True})["tokens"])

    def close(self) -> None:
        """End all processes."""
        server = self._server
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.close()
        try:
            server.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
        server.stdout.close()

    def send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Have the fork server carry out a command; return its reply."""
        assert self._server.stdin is not None
        with self._lock:
            self._server.stdin.write(json.dumps(command).encode() + b"\n")
            self._server.stdin.flush()
            return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise ProcessError(f"the fork server ended:\n{self._log.read_text()[-3000:]}")
        reply: dict[str, Any] = json.loads(line)
        if "pid" in reply:
            self.ended.pop(reply["pid"], None)  # of an earlier process with this id
        self.ended.update(reply.get("ended", ()))
        return reply


class ForkedPopen:
    """A running process, with the part of Popen's interface that is needed."""

    def __init__(self, server: ForkedProcesses, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None:
            self._server.poll()
            self.returncode = self._server.ended.get(self.pid)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; raises subprocess.TimeoutExpired."""
        until = time.monotonic() + (timeout if timeout is not None else float("inf"))
        while (status := self.poll()) is None:
            if time.monotonic() > until:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0.0)
            time.sleep(_POLL_S)
        return status

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.returncode is None:
            self._server.send({"signal": number, "pid": self.pid})

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

"""Workers and gateways that a fork server starts; see fork_server.py."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_tests.faults.kills.fork_server import COUNT_TOKENS, VLLM
from load_tests.harness.errors import ProcessError

_STOP_S = 15.0


@dataclass(frozen=True, slots=True)
class ForkedProcess:
    """A process that was started."""

    pid: int
    name: str
    log: Path

    def tail(self) -> str:
        """Return the last 3,000 characters of its log."""
        return self.log.read_text(errors="replace")[-3000:]


class ForkedProcesses:
    """Starts processes and sends them signals. All end when it is closed. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        controls: Sequence[str] = (),
        *,
        vllm: bool = False,
        count_tokens: bool = False,
    ) -> None:
        """Start the fork server; `controls` are names of negative controls (controls.py).

        `vllm`: it imports vLLM, too, so that workers with vLLM start sooner.
        """
        self.ended: dict[int, int] = {}
        """Exit status of each process that has ended, by process id."""
        self._folder = folder
        self._lock = threading.Lock()
        self._log = (folder / "fork_server.log").open("wb")
        self._server = subprocess.Popen(
            [
                *(sys.executable, "-m", "load_tests.faults.kills.fork_server", *controls),
                *([COUNT_TOKENS] * count_tokens),
                *([VLLM] * vllm),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            start_new_session=True,
        )
        self._read()

    def start(
        self, main: str, name: str, log: Path, environment: Mapping[str, str]
    ) -> ForkedProcess:
        """Start a `worker` or a `gateway`. `environment`: all of its variables."""
        command = {"start": main, "environment": dict(environment), "log": str(log)}
        return ForkedProcess(int(self._send(command)["pid"]), name, log)

    def signal(self, process: ForkedProcess, number: int) -> bool:
        """Send a signal; return False if the process has ended."""
        return bool(self._send({"signal": number, "pid": process.pid})["sent"])

    def poll(self) -> None:
        """Bring `ended` up to date."""
        self._send({})

    def generated_tokens(self) -> int:
        """Return how many tokens the engines of all workers have generated."""
        return int(self._send({"tokens": True})["tokens"])

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
        self._log.close()

    def _send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        with self._lock:
            self._server.stdin.write(json.dumps(command).encode() + b"\n")
            self._server.stdin.flush()
            return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise ProcessError(
                f"the fork server ended:\n{(self._folder / 'fork_server.log').read_text()[-3000:]}"
            )
        reply: dict[str, Any] = json.loads(line)
        if "pid" in reply:
            self.ended.pop(reply["pid"], None)  # of an earlier process with this id
        self.ended.update(reply.get("ended", ()))
        return reply

"""Forks gateways, workers and maintenance processes in milliseconds; and the client of that server.

`python -m tests.harness.fork [MODULE:FUNCTION[:ARGUMENT...]...]` calls these functions, imports
everything that the processes need, before any event loop or connection, and then forks a process
for each command.
A command is a line of JSON on its input; the reply is a line on its output:

    {"start": one of MODULES, "environment": {...}, "log": path}  ->  {"pid": 123}
    {"signal": 9, "pid": 123}  ->  {}; nothing is done if the process has ended
    {}  ->  {}

Each reply also has `ended`: process id and exit status of the processes that have ended since the
reply before. Signals go through this process because it is the parent: a process id can't belong
to another process before its parent has read the exit status. Its processes end with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from shared.platform.death_signal import request_signal
from tests.harness.settings import ROOT
from tests.harness.waiting import ProcessError

MODULES = ("gateway", "worker", "gateway.maintenance")
"""What can be forked."""
START_AFTER_S = "START_AFTER_S"
"""Variable of a process: it does nothing for so many seconds."""
_PRELOADED = (
    "gateway.maintenance.process",
    "h11",
    "httptools",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "worker.engines.simulated.engine",
)
_STOP_S = 15.0
_POLL_S = 0.01


class ForkServer:
    """A fork server and its processes, which end when it is closed. Thread-safe."""

    def __init__(self, folder: Path, functions: Sequence[str] = ()) -> None:
        """`functions` are called in it first; see the module."""
        self._running: dict[int, ForkedPopen] = {}
        self._lock = threading.Lock()
        self._log = folder / "fork_server.log"
        with self._log.open("wb") as log:
            self._server = subprocess.Popen(
                [sys.executable, "-m", "tests.harness.fork", *functions],
                cwd=ROOT,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        self._read()

    def start(self, module: str, log: Path, environment: Mapping[str, str]) -> ForkedPopen:
        """Start one of MODULES with these variables; its output goes to `log`."""
        log.touch()  # whoever reads it need not wait for the process
        command = {"start": module, "environment": dict(environment), "log": str(log)}
        with self._lock:
            reply = self._call(command)
            popen = self._running[reply["pid"]] = ForkedPopen(self, reply["pid"])
            self._note_ends(reply)
        return popen

    def signal(self, pid: int, number: int) -> None:
        """Send a signal to one of its processes, unless that has ended."""
        with self._lock:
            self._note_ends(self._call({"signal": number, "pid": pid}))

    def poll(self) -> None:
        """Set the exit status of the processes that have ended."""
        with self._lock:
            self._note_ends(self._call({}))

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

    def _call(self, command: Mapping[str, Any]) -> dict[str, Any]:
        assert self._server.stdin is not None
        self._server.stdin.write(json.dumps(command).encode() + b"\n")
        self._server.stdin.flush()
        return self._read()

    def _read(self) -> dict[str, Any]:
        assert self._server.stdout is not None
        line = self._server.stdout.readline()
        if not line:
            raise ProcessError(f"the fork server ended:\n{self._log.read_text()[-3000:]}")
        reply: dict[str, Any] = json.loads(line)
        return reply

    def _note_ends(self, reply: Mapping[str, Any]) -> None:
        for pid, status in reply["ended"]:
            self._running.pop(pid).returncode = status


class ForkedPopen:
    """A process of a fork server, with the part of Popen's interface that is needed."""

    def __init__(self, server: ForkServer, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._server = server

    def poll(self) -> int | None:
        """Return the exit status, None while it runs."""
        if self.returncode is None:
            self._server.poll()
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
            self._server.signal(self.pid, number)

    def terminate(self) -> None:
        """Send SIGTERM."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


class _Server:
    """Carries out commands; see the module."""

    def __init__(self) -> None:
        self._mains: dict[str, Callable[[], None]] = {
            module: importlib.import_module(f"{module}.__main__").main for module in MODULES
        }
        self._running: set[int] = set()

    def reply(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one command; return the reply to it."""
        reply: dict[str, Any] = {}
        if "start" in command:
            pid = os.fork()
            if pid == 0:
                _run(self._mains[command["start"]], command)
            self._running.add(pid)
            reply["pid"] = pid
        elif "signal" in command and command["pid"] in self._running:
            os.kill(command["pid"], command["signal"])
        reply["ended"] = list(self._ends())
        return reply

    def _ends(self) -> list[tuple[int, int]]:
        ends = []
        for pid in tuple(self._running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._running.discard(pid)
                ends.append((pid, os.waitstatus_to_exitcode(status)))
        return ends


def _run(process_main: Callable[[], None], command: Mapping[str, Any]) -> None:
    """Become the process; never returns."""
    status = 1
    try:
        request_signal(signal.SIGKILL)
        output = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        os.setsid()
        os.environ.clear()
        os.environ.update(command["environment"])
        time.sleep(float(os.environ.pop(START_AFTER_S, "0")))
        sys.argv = [command["start"]]
        process_main()
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _serve(functions: Sequence[str]) -> None:
    """Carry out commands until the end of the input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints at import is no reply
    for module, name, *arguments in (each.split(":") for each in functions):
        getattr(importlib.import_module(module), name)(*arguments)
    for module in _PRELOADED:
        importlib.import_module(module)
    server = _Server()
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all these objects
    print("{}", file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.reply(json.loads(line))), file=replies, flush=True)


if __name__ == "__main__":
    _serve(sys.argv[1:])

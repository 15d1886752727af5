"""Gateways, workers and maintenance as child processes, each on a free port."""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.harness.fork import MODULES, ForkedPopen, ForkServer
from tests.harness.processes import Process as Process
from tests.harness.processes import end_all
from tests.harness.processes import metric as metric
from tests.harness.servers import free_port
from tests.harness.settings import child_environment
from tests.harness.waiting import DEADLINE_S, wait_for

_END_S = 2.0


class Stack:
    """Processes that use one Redis, each with a log file; `close` ends those that still run."""

    def __init__(
        self,
        redis_url: str,
        folder: Path,
        launcher: tuple[str, ...] = (),
        *,
        settings: Mapping[str, Any] | None = None,
        fork: ForkServer | bool = True,
        python: tuple[str, ...] = (sys.executable,),
        end_s: float = _END_S,
    ) -> None:
        """`launcher`: a program that starts each process, with its command as arguments.

        `settings`: of all processes. `fork`: True to fork what has no real vLLM, by a server that
        all stacks share; False: never; a server: it forks everything. `end_s`: what runs on for so
        long when the stack is closed is killed, as a gateway with open answers.
        """
        self.redis_url = redis_url
        self.folder = folder
        self.processes: list[Process] = []
        self.afterwards = contextlib.ExitStack()
        """What ends when all processes have ended, as their Redis."""
        self._settings = settings or {}
        self._launcher = launcher
        self._fork = fork
        self._python = python
        self._end_s = end_s
        self._numbers = itertools.count()

    def gateway(self, *, wait: bool = True, **changes: Any) -> Process:
        """Start a gateway and wait until it is ready; `changes` are settings, or as in `start`."""
        changes.setdefault("port", free_port())
        process = self.start("gateway", url=f"http://127.0.0.1:{changes['port']}", **changes)
        if wait:
            wait_for(process.ready, f"{process.name} is ready", processes=[process])
        return process

    def worker(self, *, wait: bool = True, ready_s: float = DEADLINE_S, **changes: Any) -> Process:
        """Start a worker, by default with the simulated engine, and wait until it is ready."""
        changes = {"engine": "simulated", **changes}
        process = self.serve("worker", **{"worker_port": free_port(), **changes})
        if wait:
            wait_for(process.ready, f"{process.name} is ready", ready_s, [process])
        return process

    def maintenance(self, **changes: Any) -> Process:
        """Start a maintenance process, which serves no HTTP; does not wait."""
        return self.start("gateway.maintenance", **changes)

    def serve(self, module: str, **changes: Any) -> Process:
        """Start a worker process of this module; does not wait."""
        return self.start(module, url=f"http://127.0.0.1:{changes['worker_port']}", **changes)

    def start(
        self,
        module: str,
        *words: str,
        url: str = "",
        name: str = "",
        variables: Mapping[str, str] | None = None,
        **changes: Any,
    ) -> Process:
        """Start a module of the product with these arguments; does not wait.

        `url`: where it serves HTTP. `variables`: of its environment, beside its settings.
        """
        settings = {"redis_url": self.redis_url, **self._settings, **changes}
        environment = child_environment(**settings) | dict(variables or {})
        name = name or module
        fork = self._fork
        if self._launcher or words or module not in MODULES:
            fork = False
        elif fork is True:
            simulated = module != "worker" or settings.get("engine") == "simulated"
            fork = simulated and shared_fork_server()
        if not fork:
            command = [*self._launcher, *self._python, "-m", module, *words]
            return self.program(name, command, environment, url=url)
        log = self._log(name)
        assert isinstance(fork, ForkServer)
        return self._add(name, url, fork.start(module, log, environment), log)

    def program(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
        *,
        url: str = "",
    ) -> Process:
        """Start any program; `environment` replaces this process' own if given."""
        log = self._log(name)
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return self._add(name, url, popen, log)

    def close(self) -> None:
        """End all processes that still run, then what they have used."""
        end_all(self.processes, self._end_s)
        self.afterwards.close()

    def _log(self, name: str) -> Path:
        return self.folder / f"{name}-{next(self._numbers)}.log"

    def _add(
        self, name: str, url: str, popen: subprocess.Popen[bytes] | ForkedPopen, log: Path
    ) -> Process:
        process = Process(name, url, popen, log)
        self.processes.append(process)
        return process


@functools.cache
def shared_fork_server() -> ForkServer:
    """The fork server of this test process; it ends with the test process."""
    server = ForkServer(Path(tempfile.mkdtemp(prefix="flotilla-tests-")))
    atexit.register(server.close)
    return server

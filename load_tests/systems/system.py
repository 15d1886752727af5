"""The interface of a measured system: processes with roles, and ports that take requests.

A proxy in front of `direct` starts `direct` with `start_server` (role `engine`) and itself with
role `front`.
"""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Self

from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import READY_S, Process, Processes, Role, python_command, wait_for
from load_tests.harness.redis_server import RedisServer
from load_tests.systems.engine import EngineTiming


class UnavailableError(RuntimeError):
    """A system can't be installed on this machine; the message says why in one line."""


class System(ABC):
    """One way to serve the engine. Call `start` once."""

    name: ClassVar[str]
    path: ClassVar[str] = "/v1/chat/completions"
    extra_events: ClassVar[int] = 2
    """Events of a stream that carry no token: the chunk with the role, and `[DONE]`."""
    least_events: ClassVar[int] = 0
    """Fewest events of a stream, where one may carry several tokens; 0: one for each token."""
    body_fields: ClassVar[dict[str, Any]] = {}
    """Fields in which its requests differ from those to other systems."""
    timeout_s: ClassVar[float] = 20.0
    """A point may take so long, and ten times as long as its load alone."""
    python: ClassVar[Path] = Path(sys.executable)
    """Runs gateway and worker; the checkout that is installed there is the one measured."""
    may_fail: ClassVar[bool] = False
    """A failure of it is printed in one line and does not end the run."""

    def __init__(self, processes: Processes, timing: EngineTiming) -> None:
        self._processes = processes
        self._timing = timing
        self.folder: Path = processes.folder
        self.processes: list[Process] = []
        self.ports: list[int] = []
        """Ports for requests; connections are spread over them."""
        self.redis: list[RedisServer] = []

    @classmethod
    def variant(cls, name: str, **attributes: Any) -> type[Self]:
        """Return this system with another name and these attributes of the class."""
        return type(name, (cls,), {"name": name, **attributes})

    @classmethod  # noqa: B027 - most systems need nothing
    def prepare(cls) -> None:
        """Install what it needs on this machine. Raises UnavailableError."""

    @abstractmethod
    def start(self) -> None:
        """Start the processes and wait until requests are answered. Raises ProcessError."""

    def cpu_s(self) -> dict[str, float]:
        """Return CPU seconds so far by label; processes with the same label are added up."""
        seconds: Counter[str] = Counter()
        for process in self.processes:
            seconds[process.label] += process.cpu_s()  # type: ignore[assignment]
        return dict(seconds)

    def roles(self) -> dict[str, str]:
        """Return role by label."""
        return {process.label: process.role for process in self.processes}

    def log_bytes(self) -> float | None:
        """Return the bytes of Redis memory that all job logs take; None if it keeps no logs."""
        return None

    def start_server(self, module: str) -> int:
        """Start a module that serves the engine and takes a port as argument; return the port."""
        port = free_port()
        command = python_command(module, port)
        server = self._processes.start("engine", "engine", command, self._timing.environment())
        self.processes.append(server)
        wait_for(lambda: responds_ok(port, "/health"), f"{module} is ready", [server])
        return port

    def start_flotilla(
        self, module: str, label: str, role: Role, ready_s: float = READY_S, /, **settings: Any
    ) -> int:
        """Start Flotilla's gateway or worker on a free port, wait until it is ready; return it.

        Waits at most `ready_s` seconds. Raises ProcessError.
        """
        port = free_port()
        settings["port" if module == "gateway" else "worker_port"] = port
        environment = self.flotilla_environment(**settings)
        command = [str(self.python), "-P", "-m", module]
        process = self._processes.start(label, role, command, environment)
        self.processes.append(process)
        wait_for(lambda: responds_ok(port, "/readyz"), f"{label} is ready", [process], ready_s)
        return port

    def flotilla_environment(self, **settings: Any) -> dict[str, str]:
        """Return the environment of a Flotilla process with these settings."""
        return self._timing.environment(**settings)

    def start_redis(self) -> RedisServer:
        """Start a Redis with an append-only file, as Flotilla requires it."""
        port = free_port()
        redis = RedisServer(self._processes, port, self.folder / f"redis-{port}")
        self.redis.append(redis)
        self.processes.append(redis.process)
        return redis

    def redis_counters(self) -> dict[str, float]:
        """Return RedisServer.counters, added up over its Redis servers."""
        total: Counter[str] = Counter()
        for redis in self.redis:
            total.update(redis.counters())
        return dict(total)

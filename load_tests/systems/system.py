"""The interface of a measured system: its processes, and ports that take requests.

The names of the processes are the columns of the tables; several may have the same.
"""

from __future__ import annotations

import sys
import tempfile
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import Any, ClassVar, Self

from load_tests.systems.engine import EngineTiming
from tests.harness.fleet import Stack
from tests.harness.processes import Process, python_command
from tests.harness.servers import RedisServer, free_port
from tests.harness.waiting import DEADLINE_S, wait_for

_ENGINES = ("engine", "worker", "workers", "vllm")
_END_S = 15.0


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

    def __init__(self, processes: Stack, timing: EngineTiming) -> None:
        """It ends when `processes` is closed."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"{self.name}-", dir=processes.folder))
        self.stack = Stack(
            "", self.folder, settings=self.engine_settings(timing), fork=False,
            python=(str(self.python), "-P"), end_s=_END_S,
        )  # fmt: skip
        processes.afterwards.callback(self.stack.close)
        self._timing = timing
        self.ports: list[int] = []
        """Ports for requests; connections are spread over them."""
        self.redis: list[RedisServer] = []

    @classmethod
    def variant(cls, name: str, **attributes: Any) -> type[Self]:
        """Return this system with another name and these attributes of the class."""
        return type(name, (cls,), {"name": name, **attributes})

    @abstractmethod
    def start(self) -> None:
        """Start the processes and wait until requests are answered. Raises ProcessError."""

    def engine_settings(self, timing: EngineTiming) -> dict[str, Any]:
        """Return the settings of all processes of Flotilla; all others have their defaults."""
        return timing.settings()

    @property
    def processes(self) -> list[Process]:
        """Redis, and all others."""
        return [*(redis.process for redis in self.redis), *self.stack.processes]

    def cpu_s(self) -> dict[str, float]:
        """Return CPU seconds so far by name; processes with the same name are added up."""
        seconds: Counter[str] = Counter()
        for process in self.processes:
            seconds[process.name] += process.cpu_s()  # type: ignore[assignment]
        return dict(seconds)

    def roles(self) -> dict[str, str]:
        """Return by name: `engine` where the engine runs, else `front` (gateway, Redis)."""
        names = {process.name for process in self.processes}
        return {name: "engine" if name in _ENGINES else "front" for name in names}

    def log_bytes(self) -> float | None:
        """Return the bytes of Redis memory that all job logs take; None if it keeps no logs."""
        return None

    def start_server(self, module: str) -> int:
        """Start a module that serves the engine and takes a port as argument; return the port."""
        port = free_port()
        command, environment = python_command(module, port), self._timing.environment()
        self.start_program("engine", command, port, environment=environment)
        return port

    def start_program(
        self,
        name: str,
        command: list[str],
        port: int,
        ready_s: float = DEADLINE_S,
        environment: dict[str, str] | None = None,
    ) -> None:
        """Start a program that serves HTTP and wait until it is healthy. Raises ProcessError."""
        process = self.stack.program(name, command, environment, url=f"http://127.0.0.1:{port}")
        wait_for(lambda: process.ready("/health"), f"{self.name} is ready", ready_s, [process])

    def start_gateway(self, **settings: Any) -> None:
        """Start a gateway; `ports` gets its port. Raises ProcessError."""
        port = free_port()
        self.stack.gateway(port=port, **settings)
        self.ports.append(port)

    def start_redis(self) -> RedisServer:
        """Start a Redis with an append-only file, as Flotilla requires it."""
        redis = RedisServer(self.folder / f"redis-{len(self.redis)}")
        self.redis.append(redis)
        self.stack.afterwards.callback(redis.kill)
        redis.start()
        return redis

    def redis_counters(self) -> dict[str, float]:
        """Return RedisServer.counters, added up over its Redis servers."""
        total: Counter[str] = Counter()
        for redis in self.redis:
            total.update(redis.counters())
        return dict(total)

"""What a system that is measured has to offer: processes with roles, and ports that take requests.

A proxy in front of `direct` starts `direct` with `start_server` (role `engine`) and itself with
role `front`.
"""

from __future__ import annotations

import socket
from abc import ABC, abstractmethod
from collections import Counter
from pathlib import Path
from typing import ClassVar

from load_tests.harness.processes import Process, Processes, RedisServer, answers, python, wait_for
from load_tests.systems.engine import EngineTiming


class System(ABC):
    """One way to serve the engine. `start` it once."""

    name: ClassVar[str]
    path: ClassVar[str] = "/v1/chat/completions"
    headers: ClassVar[dict[str, str]] = {}
    extra_events: ClassVar[int] = 2
    """A stream's events that carry no token: the role's chunk and `[DONE]`."""

    skipped_points: ClassVar[frozenset[str]] = frozenset()
    """Points that it can't keep up with, so that nothing is learnt from them."""

    fewer_requests: ClassVar[int] = 1
    """Divides the number of requests of every point, for what takes seconds where others take one.
    """

    is_peer: ClassVar[bool] = False
    """Other people's: left out with one line where it can't be had."""

    may_fail: ClassVar[bool] = False
    """It is there to be compared with: where it fails, that is told in one line, and no more."""

    def __init__(self, processes: Processes, timing: EngineTiming) -> None:
        self._processes = processes
        self._timing = timing
        self.folder: Path = processes.folder
        self.processes: list[Process] = []
        self.ports: list[int] = []
        """Where requests go; connections are spread over them."""
        self.redis: list[RedisServer] = []

    @classmethod  # noqa: B027 - most need nothing
    def prepare(cls) -> None:
        """Get what it needs on this machine. Raises UnavailableError."""

    @abstractmethod
    def start(self) -> None:
        """Start the processes; return when requests are answered. Raises ProcessError."""

    def cpu_s(self) -> dict[str, float]:
        """Seconds on a CPU so far by label; several processes of one label are added up."""
        seconds: dict[str, float] = {}
        for process in self.processes:
            seconds[process.label] = seconds.get(process.label, 0.0) + process.cpu_s()
        return seconds

    def roles(self) -> dict[str, str]:
        """Label -> role."""
        return {process.label: process.role for process in self.processes}

    def log_bytes(self) -> float | None:
        """Redis memory of the logs of all ended jobs; None if it keeps none."""
        return None

    def start_server(self, module: str) -> int:
        """A server of the engine that takes a port as its argument; the port."""
        port = free_port()
        command = python(module, port)
        server = self._processes.start("engine", "engine", command, self._timing.environment())
        self.processes.append(server)
        wait_for(lambda: answers(port, "/health"), f"{module} is ready", [server])
        return port

    def start_redis(self) -> RedisServer:
        """Durable, as the product asks."""
        port = free_port()
        redis = RedisServer(self._processes, port, self.folder / f"redis-{port}")
        self.redis.append(redis)
        self.processes.append(redis.process)
        return redis

    def redis_counters(self) -> dict[str, float]:
        """RedisServer.counters of all its servers, added up."""
        total: Counter[str] = Counter()
        for redis in self.redis:
            total.update(redis.counters())
        return dict(total)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

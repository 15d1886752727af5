"""`flotilla`: the product as `flotilla up` runs it: gateway, durable Redis, worker, nothing tuned.

`flotilla-tcp` is the same with Redis behind a port, as where each has a machine or a container of
its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from load_tests.processes import Role, answers, python, wait_for
from load_tests.systems.system import System, free_port
from shared import keys


class Flotilla(System):
    """One gateway, one worker."""

    name = "flotilla"
    n_gateways: ClassVar[int] = 1
    socket: ClassVar[bool] = True

    def start(self) -> None:
        redis = self.start_redis()
        url = redis.socket_url if self.socket else redis.url
        port = free_port()
        self._start("worker", "engine", "engine", port, redis_url=url, worker_port=port)
        for _ in range(self.n_gateways):
            port = free_port()
            self._start("gateway", "gateway", "front", port, redis_url=url, port=port)
            self.ports.append(port)

    def log_bytes(self) -> float:
        assert self.redis is not None, "started"
        client = self.redis.client
        found = client.scan_iter(match=keys.log(0, "*"), count=1000)
        return float(sum(client.memory_usage(key, samples=0) or 0 for key in found))

    def _start(self, module: str, label: str, role: Role, at: int, **settings: Any) -> None:
        environment = self._timing.environment(**settings)
        process = self._processes.start(label, role, python(module), environment)
        self.processes.append(process)
        wait_for(lambda: answers(at, "/readyz"), f"the {module} is ready", [process])


class FlotillaTwoGateways(Flotilla):
    """Connections are spread over two gateway processes."""

    name = "flotilla-2gw"
    n_gateways = 2


class FlotillaTcp(Flotilla):
    """Redis behind a port."""

    name = "flotilla-tcp"
    socket = False

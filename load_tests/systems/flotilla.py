"""`flotilla`: the product as `flotilla up` runs it: gateway, durable Redis, worker, nothing tuned.

`flotilla-2gw` has two gateways, `flotilla-2redis` two Redis servers with a shard each.
`flotilla-tcp` is the same with Redis behind a port, as where each has a machine or a container of
its own.
"""

from __future__ import annotations

from typing import Any, ClassVar

from load_tests.harness.processes import RedisServer, Role, answers, python, wait_for
from load_tests.systems.system import System, free_port
from shared.protocol import keys


class Flotilla(System):
    """One gateway, one worker."""

    name = "flotilla"
    n_gateways: ClassVar[int] = 1
    n_servers: ClassVar[int] = 1
    socket: ClassVar[bool] = True

    def start(self) -> None:
        servers = [self.start_redis() for _ in range(self.n_servers)]
        urls = [redis.socket_url if self.socket else redis.url for redis in servers]
        settings: dict[str, Any] = {"redis_url": urls[0]}
        if len(urls) > 1:
            settings |= {"shards": len(urls), "shard_redis_urls": ",".join(urls)}
        port = free_port()
        self._start("worker", "engine", "engine", port, **settings, worker_port=port)
        for _ in range(self.n_gateways):
            port = free_port()
            self._start("gateway", "gateway", "front", port, **settings, port=port)
            self.ports.append(port)

    def log_bytes(self) -> float:
        return sum(map(_log_bytes, self.redis))

    def _start(self, module: str, label: str, role: Role, at: int, **settings: Any) -> None:
        environment = self._timing.environment(**settings)
        process = self._processes.start(label, role, python(module), environment)
        self.processes.append(process)
        wait_for(lambda: answers(at, "/readyz"), f"the {module} is ready", [process])


class FlotillaTwoGateways(Flotilla):
    """Connections are spread over two gateway processes."""

    name = "flotilla-2gw"
    n_gateways = 2


class FlotillaTwoRedis(Flotilla):
    """Two shards, each with a Redis of its own."""

    name = "flotilla-2redis"
    n_servers = 2


class FlotillaTcp(Flotilla):
    """Redis behind a port."""

    name = "flotilla-tcp"
    socket = False


def _log_bytes(redis: RedisServer) -> float:
    found = redis.client.scan_iter(match=f"*{keys.LOG}:*", count=1000)
    return float(sum(redis.client.memory_usage(key, samples=0) or 0 for key in found))

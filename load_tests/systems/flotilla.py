"""`flotilla`: gateway, durable Redis and worker with default settings, as `flotilla up` runs them.

`flotilla-2gw` has two gateways. `flotilla-tcp` reaches Redis by TCP instead of a Unix
socket, as on separate machines or containers. `flotilla-before` runs another checkout of Flotilla:
the environment variable BEFORE names its folder, in which `make install` was run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, ClassVar

from load_tests.harness.errors import RunError
from load_tests.systems.direct import Direct
from load_tests.systems.system import System
from tests.harness.servers import RedisServer


class Flotilla(System):
    """One gateway, one worker."""

    name = "flotilla"
    n_gateways: ClassVar[int] = 1
    redis_by_socket: ClassVar[bool] = True

    def start(self) -> None:
        """Start Redis, the worker, the gateways."""
        redis = self.start_redis()
        url = redis.socket_url if self.redis_by_socket else redis.url
        settings: dict[str, Any] = {"redis_url": url}
        self.stack.worker(name="engine", **settings)
        for _ in range(self.n_gateways):
            self.start_gateway(**settings)

    def log_bytes(self) -> float:
        """Return the bytes of Redis memory that all job logs take."""
        return sum(map(_log_bytes, self.redis))


class FlotillaBefore(Flotilla):
    """Another checkout, to compare a change with the state before it in the same rounds."""

    name = "flotilla-before"
    python = Path(os.environ.get("BEFORE", "")) / ".venv/bin/python"

    def start(self) -> None:
        """Raises RunError if BEFORE is not set or has nothing installed."""
        if "BEFORE" not in os.environ or not self.python.exists():
            raise RunError("BEFORE must name a folder of Flotilla with a .venv")
        super().start()


def _log_bytes(redis: RedisServer) -> float:
    with redis.client() as client:
        found = client.scan_iter(match="*log:*", count=1000)
        return float(sum(client.memory_usage(key, samples=0) or 0 for key in found))


SYSTEMS: dict[str, type[System]] = {
    system.name: system
    for system in (
        Direct,
        Flotilla,
        FlotillaBefore,
        Flotilla.variant("flotilla-tcp", redis_by_socket=False),
        Flotilla.variant("flotilla-2gw", n_gateways=2),
    )
}
"""By name, in the order of the tables."""

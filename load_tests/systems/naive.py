"""`naive`: a queue between HTTP and engine, written in the most obvious way.

One pub/sub subscription per request, one PUBLISH per token, one pydantic object per chunk on both
sides. Nothing is durable, fenced or retried.
"""

from __future__ import annotations

from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import python_command, wait_for
from load_tests.systems.system import System


class Naive(System):
    """Redis, `naive_gateway.py` and `naive_worker.py`."""

    name = "naive"
    may_fail = True

    def start(self) -> None:
        """Start Redis, gateway and worker."""
        redis = self.start_redis()
        port = free_port()
        command = python_command("load_tests.systems.naive_gateway", port, redis.url)
        gateway = self._processes.start("gateway", "front", command)
        command = python_command("load_tests.systems.naive_worker", redis.url)
        environment = self._timing.environment()
        worker = self._processes.start("engine", "engine", command, environment)
        self.processes += [gateway, worker]
        wait_for(
            lambda: responds_ok(port, "/health"), "the naive gateway is ready", [gateway, worker]
        )
        self.ports = [port]

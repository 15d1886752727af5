"""`naive`: the obvious queue between HTTP and engine, as one would write it in an afternoon.

A pub/sub subscription per request, a PUBLISH per token, a pydantic object per chunk on both sides.
Nothing is lost on purpose, but nothing is durable, fenced or retried either.
"""

from __future__ import annotations

from load_tests.harness.processes import answers, python, wait_for
from load_tests.systems.system import System, free_port


class Naive(System):
    """Its gateway and its worker are `naive_gateway.py` and `naive_worker.py`."""

    name = "naive"
    may_fail = True

    def start(self) -> None:
        redis = self.start_redis()
        port = free_port()
        command = python("load_tests.systems.naive_gateway", port, redis.url)
        gateway = self._processes.start("gateway", "front", command)
        command = python("load_tests.systems.naive_worker", redis.url)
        environment = self._timing.environment()
        worker = self._processes.start("engine", "engine", command, environment)
        self.processes += [gateway, worker]
        wait_for(lambda: answers(port, "/health"), "the naive gateway is ready", [gateway, worker])
        self.ports = [port]

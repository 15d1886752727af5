"""Workers whose tokens tell when they were made, and a client that reads it.

`python -m load_tests.capacity.stamped WORKERS` runs so many workers with simulated engines in one
process. Without the argument it is the load client: see `read`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import re
import sys
import time

import uvloop
from prometheus_client import CollectorRegistry

from load_tests.clients.load_client import LoadClient, parse_spec
from load_tests.clients.response_parser import ResponseParser
from shared.fleet.pools import load_pools
from shared.platform.settings import load_settings
from worker.core.lifecycle import Worker
from worker.engines.simulated import generation
from worker.engines.simulated.engine import SimulatedEngine
from worker.engines.simulated.simulated_settings import SimulatedSettings
from worker.worker_settings import WorkerSettings

_MODULUS = 10**9
_TOKEN = re.compile(rb'" (\d{9})"')
_ages: list[float] = []


class _Stamps:
    """Stands for the engine's tokens: each is the microseconds of the monotonic clock, 9 digits."""

    def __getitem__(self, token: int) -> str:
        return f" {time.monotonic_ns() // 1000 % _MODULUS:09}"


class _StampReader(ResponseParser):
    __slots__ = ()

    def feed(self, data: bytes) -> int:
        if data.startswith(b"HTTP/"):  # with it comes the first token, which is not simulated
            return super().feed(data)
        now = time.monotonic()
        for stamp in _TOKEN.findall(data):
            _ages.extend((now, (int(now * 1e6) - int(stamp)) % _MODULUS))
        return super().feed(data)


def step_factor(worker: int, workers: int) -> float:
    """Return how long a worker's steps are, by the mean: no two keep in step."""
    return 0.9 + 0.2 * (worker + 0.5) / workers


async def run_workers(workers: int) -> None:
    """Serve until a signal; the settings come from the environment."""
    settings, engine = load_settings(WorkerSettings), load_settings(SimulatedSettings)
    pool, every = load_pools(settings).own, []
    for n in range(workers):
        own = settings.model_copy(update={"worker_id": f"w-{n}"})
        step_ms = engine.sim_step_ms * step_factor(n, workers)
        its_engine = SimulatedEngine(engine.model_copy(update={"sim_step_ms": step_ms}), pool)
        every.append(Worker(own, pool, its_engine, CollectorRegistry()).run())
    await asyncio.gather(*every)


def read() -> None:
    """Send the load of the `LoadSpec` on stdin until its time is up; print what was wrong, and ages
    of all tokens but the first of each answer.

    The ages are flat pairs: when a token came (seconds), how old it was then (microseconds).
    """
    gc.disable()
    client = LoadClient(parse_spec(json.loads(sys.stdin.readline())), _StampReader)
    print("started", flush=True)
    print(json.dumps({"problems": client.run().problems, "ages": _ages}), flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        read()
    else:
        vars(generation)["TOKENS"] = _Stamps()
        uvloop.run(run_workers(int(sys.argv[1])))

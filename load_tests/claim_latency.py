"""How long an idle worker takes to get a job: from the call of `submit` to the engine's request.

The worker is another process (claiming_worker.py); both read the machine's monotonic clock. Jobs
are submitted one at a time, with pauses, so that the worker waits for its bell again.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from statistics import median, quantiles

from load_tests.processes import Processes, RedisServer, python, wait_for
from load_tests.queue_costs import POOL, new_job, open_queue, submit
from shared.line import Line
from shared.queue import JobQueue
from shared.redis import TIMEOUT_S

OTHER_POOL = "other"
_PAUSE_S = (0.015, 0.035)
_LOOK_AGAIN_S = 0.05
_WARM_UP = 20
_PINGS = 100


@dataclass(frozen=True, slots=True)
class Latency:
    """Milliseconds from submit to claim, of a quiet system."""

    waiting_elsewhere: int
    """Jobs that waited in another pool."""
    p50_ms: float
    p99_ms: float
    samples: int
    ping_p50_ms: float
    """A round trip to Redis, just as quiet: how long this machine takes to wake up twice."""


def summarize(waiting_elsewhere: int, claims_s: list[float], pings_s: list[float]) -> Latency:
    """Each of at least two values."""
    percentiles = quantiles(claims_s, n=100, method="inclusive")
    return Latency(
        waiting_elsewhere,
        p50_ms=1e3 * percentiles[49],
        p99_ms=1e3 * percentiles[98],
        samples=len(claims_s),
        ping_p50_ms=1e3 * median(pings_s),
    )


async def measure_latencies(
    processes: Processes, server: RedisServer, elsewhere: tuple[int, ...], samples: int
) -> list[Latency]:
    """One for each number of jobs in another pool, which must ascend."""
    command = python("load_tests.claiming_worker", server.url, POOL)
    worker = processes.start("worker", "engine", command)
    wait_for(lambda: _waits(server), "the worker waits for its bell", [worker])
    latencies = []
    async with open_queue(server) as queue:
        line = Line(queue.redis, TIMEOUT_S)
        waiting = 0
        for count in elsewhere:
            await submit(queue, count - waiting, OTHER_POOL)
            waiting = count
            claims_s = [await _claim_s(queue) for _ in range(samples + _WARM_UP)]
            pings_s = [await _ping_s(line) for _ in range(_PINGS)]
            latencies.append(summarize(count, claims_s[_WARM_UP:], pings_s))
        await line.close()
    return latencies


def _waits(server: RedisServer) -> bool:
    return any(client["cmd"] == "blpop" for client in server.client.client_list())


async def _ping_s(line: Line) -> float:
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    began = time.monotonic()
    await line.call("PING")
    return time.monotonic() - began


async def _claim_s(queue: JobQueue) -> float:
    """Of one job."""
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    job = new_job()
    began_ns = time.monotonic_ns()
    await queue.submit(job, 1 << 40)
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            ended = await queue.get(job.id)
            if ended is not None and ended.state.terminal:
                return float(json.loads(ended.result)["at_ns"] - began_ns) / 1e9

"""How long an idle worker takes to get a job: from the call of `submit` until the worker has it.

And until its engine is called, which is the worker's own work. The worker is another process
(claiming_worker.py); both read the machine's monotonic clock. Jobs are submitted one at a time,
with pauses, so that all that takes part has gone to sleep.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from dataclasses import dataclass
from statistics import median, quantiles

from load_tests.harness.processes import Processes, RedisServer, python, wait_for
from load_tests.job_queue.costs import POOL, new_job, open_queue, submit
from shared.platform.pipelined_connection import PipelinedConnection
from shared.platform.redis_client import TIMEOUT_S
from shared.queue.job_queue import JobQueue

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
    engine_p50_ms: float
    """Until the engine is called."""
    samples: int
    ping_p50_ms: float
    """A round trip to Redis, just as quiet: how long this machine takes to wake up twice."""


def summarize(
    waiting_elsewhere: int, times_s: list[tuple[float, float]], pings_s: list[float]
) -> Latency:
    """`times_s`: until the claim, until the engine; at least two of each."""
    claims_s, engine_s = zip(*times_s, strict=True)
    percentiles = quantiles(claims_s, n=100, method="inclusive")
    return Latency(
        waiting_elsewhere,
        p50_ms=1e3 * percentiles[49],
        p99_ms=1e3 * percentiles[98],
        engine_p50_ms=1e3 * median(engine_s),
        samples=len(times_s),
        ping_p50_ms=1e3 * median(pings_s),
    )


async def measure_latencies(
    processes: Processes, server: RedisServer, elsewhere: tuple[int, ...], samples: int
) -> list[Latency]:
    """One for each number of jobs in another pool, which must ascend."""
    command = python("load_tests.job_queue.claiming_worker", server.socket_url, POOL)
    worker = processes.start("worker", "engine", command)
    wait_for(lambda: _waits(server), "the worker waits for its wake-up list", [worker])
    latencies = []
    async with open_queue(server) as queue:
        line = PipelinedConnection(queue.servers.primary, TIMEOUT_S)
        waiting = 0
        for count in elsewhere:
            await submit(queue, count - waiting, OTHER_POOL)
            waiting = count
            times_s = [await _claim_s(queue) for _ in range(samples + _WARM_UP)]
            pings_s = [await _ping_s(line) for _ in range(_PINGS)]
            latencies.append(summarize(count, times_s[_WARM_UP:], pings_s))
        await line.close()
    return latencies


def _waits(server: RedisServer) -> bool:
    return any(client["cmd"] == "blpop" for client in server.client.client_list())


async def _ping_s(line: PipelinedConnection) -> float:
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    began = time.monotonic()
    await line.call("PING")
    return time.monotonic() - began


async def _claim_s(queue: JobQueue) -> tuple[float, float]:
    """Of one job: until it is claimed, until the engine is called."""
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    job = new_job()
    began = time.monotonic()
    await queue.submit(job, 1 << 40)
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(_LOOK_AGAIN_S)
            ended = await queue.get(job.id)
            if ended is not None and ended.state.terminal:
                times = json.loads(ended.result)
                return times["claimed_s"] - began, times["engine_s"] - began

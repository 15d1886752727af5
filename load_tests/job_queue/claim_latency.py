"""Measures how soon an idle worker gets a job: from the call of `submit` to the worker's claim.

The time until the job has ended is measured too; the worker's simulated engine answers at once.
Both are Redis' times, by the same clock of this machine. Jobs are submitted one at a time with
pauses in between, so that all processes are asleep when a job comes.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median, quantiles

from load_tests.job_queue.costs import POOL, new_job, open_queue, submit
from load_tests.systems.engine import EngineTiming
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.pipelined_connection import PipelinedConnection
from shared.store.redis.redis_client import TIMEOUT_S
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer

OTHER_POOL = "other"
_PAUSE_S = (0.015, 0.035)
_POLL_S = 0.05
_WARM_UP = 20
_PINGS = 100


@dataclass(frozen=True, slots=True)
class ClaimLatency:
    """Milliseconds from submit to claim in an otherwise idle system."""

    waiting_elsewhere: int
    """Jobs that wait in another pool."""
    p50_ms: float
    p99_ms: float
    end_p50_ms: float
    """From submit until the job has ended."""
    samples: int
    ping_p50_ms: float
    """A PING of the equally idle Redis: how long this machine takes to wake two processes."""


def summarize(
    waiting_elsewhere: int, times_s: Sequence[tuple[float, float]], pings_s: Sequence[float]
) -> ClaimLatency:
    """Summarize samples, at least two; `times_s`: seconds from submit to claim, and to the end."""
    claims_s, ends_s = zip(*times_s, strict=True)
    percentiles = quantiles(claims_s, n=100, method="inclusive")
    return ClaimLatency(
        waiting_elsewhere,
        p50_ms=1e3 * percentiles[49],
        p99_ms=1e3 * percentiles[98],
        end_p50_ms=1e3 * median(ends_s),
        samples=len(times_s),
        ping_p50_ms=1e3 * median(pings_s),
    )


async def measure_latencies(
    processes: Stack, server: RedisServer, elsewhere: tuple[int, ...], samples: int
) -> list[ClaimLatency]:
    """Measure with each number of jobs waiting in another pool; the numbers must ascend."""
    settings = EngineTiming(step_ms=0, step_us_per_seq=0).settings(pool=POOL)
    processes.worker(redis_url=server.socket_url, **settings)
    latencies = []
    async with open_queue(server) as queue:
        connection = PipelinedConnection(queue.servers.primary, TIMEOUT_S)
        waiting = 0
        for count in elsewhere:
            await submit(queue, count - waiting, OTHER_POOL)
            waiting = count
            times_s = [await _submit_and_time(queue) for _ in range(samples + _WARM_UP)]
            pings_s = [await _time_ping(connection) for _ in range(_PINGS)]
            latencies.append(summarize(count, times_s[_WARM_UP:], pings_s))
        await connection.close()
    return latencies


async def _time_ping(connection: PipelinedConnection) -> float:
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    began = time.monotonic()
    await connection.call("PING")
    return time.monotonic() - began


async def _submit_and_time(queue: JobQueue) -> tuple[float, float]:
    """Return the seconds from submitting a job to its claim and to its end."""
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    job = new_job()
    began = time.time()
    await queue.submit_all(0, [job], 1 << 40)
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(_POLL_S)
            ended = await queue.get(job.id)
            if ended is not None and ended.state.terminal:
                attempt = ended.attempts[0]
                return attempt.started_at - began, (attempt.ended_at or 0.0) - began

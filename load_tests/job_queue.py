"""`queue`: how soon an idle worker gets a job, from the call of `submit` to the worker's claim.

The time until the job has ended is measured too; the worker's simulated engine answers at once.
Both are Redis' times, by the same clock of this machine. Jobs are submitted one at a time with
pauses in between, so that all processes are asleep when a job comes.

Exit status 0: claims are fast enough. 1: otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import uvloop

from load_tests.harness.errors import RunError
from load_tests.harness.session import OUTPUT, add_options, print_tables, save_result, session
from load_tests.harness.spread import percentile
from load_tests.harness.table import Table
from load_tests.systems.engine import CHAT_PATH, MODEL, EngineTiming
from shared.job.job import NewJob, new_job_id
from shared.job.rules import DEFAULT
from shared.store.connection import Connection
from shared.store.queue import Queue
from shared.store.servers import Servers
from tests.harness.fleet import Stack
from tests.harness.servers import RedisServer

HELP = "how soon an idle worker claims a job"
P50_LIMIT_MS, P99_LIMIT_MS = 1.0, 5.0
_POOL, _OTHER_POOL = "load", "other"
_ELSEWHERE = (0, 10_000)
_NO_LIMIT = 1 << 40
_FILL_PER_CALL = 500
_PAUSE_S = (0.015, 0.035)
_POLL_S = 0.05
_WARM_UP = 20
_PINGS = 100
_BODY = b'{"model": "%b", "max_tokens": 1, "messages": [{"role": "user", "content": "Hello."}]}' % (
    MODEL.encode()
)


@dataclass(frozen=True, slots=True)
class ClaimLatency:
    """Milliseconds from submit to claim in an otherwise idle system."""

    waiting_elsewhere: int
    """Jobs that wait in another pool."""
    p50_ms: float
    p99_ms: float
    end_p50_ms: float
    """From submit until the job has ended."""
    ping_p50_ms: float
    """A PING of the equally idle Redis: how long this machine takes to wake two processes."""

    @property
    def fast(self) -> bool:
        """Whether both limits are kept."""
        return self.p50_ms <= P50_LIMIT_MS and self.p99_ms <= P99_LIMIT_MS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    add_options(parser, {"--samples": (400, "claims to time"), **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    with session() as processes:
        latencies = uvloop.run(_measure(processes, arguments.samples))
    print_tables([_table(latencies)])
    save_result(arguments.json, "queue", {"claim_latency": [asdict(each) for each in latencies]})
    return 0 if all(each.fast for each in latencies) else 1


async def _measure(processes: Stack, samples: int) -> list[ClaimLatency]:
    """Measure with each number of jobs waiting in another pool; the numbers ascend."""
    server = RedisServer(Path(tempfile.mkdtemp(prefix="redis-", dir=processes.folder)))
    processes.afterwards.callback(server.kill)
    server.start()
    settings = EngineTiming(step_ms=0, step_us_per_seq=0).settings(pool=_POOL)
    processes.worker(redis_url=server.socket_url, **settings)
    latencies = []
    async with _open_queue(server) as queue:
        connection = Connection(queue.servers.primary.server)
        waiting = 0
        for count in _ELSEWHERE:
            while waiting < count:
                jobs = [_new_job(_OTHER_POOL) for _ in range(min(_FILL_PER_CALL, count - waiting))]
                await _submit(queue, jobs)
                waiting += len(jobs)
            times_s = [await _submit_and_time(queue) for _ in range(samples + _WARM_UP)]
            claims_s, ends_s = zip(*times_s[_WARM_UP:], strict=True)
            pings_s = [await _time_ping(connection) for _ in range(_PINGS)]
            latencies.append(
                ClaimLatency(
                    count,
                    p50_ms=1e3 * percentile(claims_s, 0.5),
                    p99_ms=1e3 * percentile(claims_s, 0.99),
                    end_p50_ms=1e3 * median(ends_s),
                    ping_p50_ms=1e3 * median(pings_s),
                )
            )
        connection.close()
    return latencies


@asynccontextmanager
async def _open_queue(server: RedisServer) -> AsyncIterator[Queue]:
    servers = Servers(server.socket_url)
    queue = Queue(servers)
    try:
        await queue.connect(0)
        yield queue
    finally:
        await queue.close()
        await servers.close()


def _new_job(pool: str) -> NewJob:
    return NewJob(
        id=new_job_id(1),
        tenant="load",
        pool=pool,
        lane=DEFAULT,
        model=MODEL,
        endpoint=CHAT_PATH,
        body=_BODY,
        stream=False,
        ttl_s=900.0,
        gateway="gw-load",
    )


async def _submit(queue: Queue, jobs: Sequence[NewJob]) -> None:
    replies = queue.parse_submit(jobs, await queue.submit(0, jobs, _NO_LIMIT))
    refused = [reply for reply in replies if not isinstance(reply, int)]
    if refused:
        raise RunError(f"not submitted: {refused[0]}")


async def _submit_and_time(queue: Queue) -> tuple[float, float]:
    """Return the seconds from submitting a job to its claim and to its end."""
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    job = _new_job(_POOL)
    began = time.time()
    await _submit(queue, [job])
    async with asyncio.timeout(10):
        while True:
            await asyncio.sleep(_POLL_S)
            (ended,) = await queue.get(job.id)
            if ended is not None and ended.state.terminal:
                attempt = ended.attempts[0]
                return attempt.started_at - began, (attempt.ended_at or 0.0) - began


async def _time_ping(connection: Connection) -> float:
    await asyncio.sleep(random.uniform(*_PAUSE_S))
    began = time.monotonic()
    await connection.call("PING")
    return time.monotonic() - began


def _table(latencies: Sequence[ClaimLatency]) -> Table:
    columns = {
        "waiting": [f"{each.waiting_elsewhere} jobs in another pool" for each in latencies],
        "p50 ms": [f"{each.p50_ms:.2f}" for each in latencies],
        "p99 ms": [f"{each.p99_ms:.2f}" for each in latencies],
        "ended p50 ms": [f"{each.end_p50_ms:.2f}" for each in latencies],
        "PING p50 ms": [f"{each.ping_p50_ms:.2f}" for each in latencies],
        "verdict": ["met" if each.fast else "missed" for each in latencies],
    }
    limits = f"limits: p50 {P50_LIMIT_MS:g} ms, p99 {P99_LIMIT_MS:g} ms"
    return Table.of_columns(f"Submit to claim by an idle worker; {limits}", columns)

"""Measures the CPU cost of submit, claim and finish while other jobs wait.

Each depth has a Redis of its own, so that a round can measure all depths within seconds: a
machine's speed changes from minute to minute, and only costs of the same round are compared.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from load_tests.harness.errors import RunError
from load_tests.harness.session import print_progress
from load_tests.systems.engine import CHAT_PATH, MODEL
from shared.job.advertised_slots import UNKNOWN, SlotUpdate
from shared.job.job import LeasedJob, NewJob, new_job_id
from shared.job.lanes import DEFAULT
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.job.step_log import FinalEntry, JobStream
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from shared.store.redis.servers import Servers
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

POOL = "load"
OPERATIONS = ("submit", "claim", "finish")
JOBS_PER_CALL = (1, 64)
"""Single calls, and the batches of a busy gateway or worker."""

_WORKER = "w-load"
_LEASE_S = 600.0
_NO_LIMIT = 1 << 40
_NO_SLOTS = SlotUpdate(POOL, "", 0, UNKNOWN)
_FILL_PER_CALL = 500
_FIRST_FILL = 10_000
"""Jobs submitted first, to measure the memory that one takes."""
_MAX_MEMORY_SHARE = 0.6
_BATCH = 256
"""Jobs submitted, then claimed, then finished: the depth deviates by no more than this."""
_BATCHES = 8
_CONCURRENT_CALLS = 32
_REWRITE_S = 300.0
_BODY = b'{"model": "%b", "max_tokens": 1, "messages": [{"role": "user", "content": "%b"}]}' % (
    MODEL.encode(),
    b"Say something short.",
)
_ANSWER = JobResult(
    event=JobEvent.COMPLETE,
    error_code="",
    status=200,
    content_type="application/json",
    body=b'{"id": "chatcmpl-0", "choices": [{"message": {"content": "%s"}}]}' % (b"word " * 40),
    prompt_tokens=10,
    completion_tokens=40,
)

T = TypeVar("T")
R = TypeVar("R")


@dataclass(slots=True)
class OperationCost:
    """What an operation cost in one round."""

    operation: str
    jobs_per_call: int
    depth: int
    """Other jobs that waited meanwhile."""
    round: int
    jobs: int
    """Jobs the operation was done with."""
    wall_s: float = 0.0
    client_s: float = 0.0
    """CPU seconds of the calling process."""
    redis_s: float = 0.0
    """CPU seconds of Redis, including its append-only file."""

    @property
    def per_s(self) -> float:
        """Jobs a second."""
        return self.jobs / self.wall_s

    @property
    def client_us(self) -> float:
        """CPU microseconds of the client per job."""
        return 1e6 * self.client_s / self.jobs

    @property
    def redis_us(self) -> float:
        """CPU microseconds of Redis per job."""
        return 1e6 * self.redis_s / self.jobs

    @property
    def total_us(self) -> float:
        """CPU microseconds of both per job."""
        return self.client_us + self.redis_us

    @contextmanager
    def measure(self, server: RedisServer) -> Iterator[None]:
        """Add what is spent meanwhile."""
        redis_s, client_s, wall_s = server.process.cpu_s(), time.process_time(), time.monotonic()
        yield
        self.wall_s += time.monotonic() - wall_s
        self.client_s += time.process_time() - client_s
        self.redis_s += server.process.cpu_s() - redis_s


@dataclass(frozen=True, slots=True)
class FilledQueue:
    """A Redis in which `depth` jobs wait."""

    server: RedisServer
    queue: JobQueue
    depth: int
    bytes_per_job: float
    """Bytes of Redis memory that a waiting job takes; 0 if none waits."""


@asynccontextmanager
async def open_queue(server: RedisServer) -> AsyncIterator[JobQueue]:
    """Connect Flotilla's job queue to this Redis."""
    servers = Servers(server.socket_url)
    queue = JobQueue(servers)
    try:
        await queue.scripts(0).load()
        yield queue
    finally:
        await queue.close()
        await servers.close()


async def fill(server: RedisServer, queue: JobQueue, depth: int) -> FilledQueue:
    """Submit `depth` jobs, or as many as fit into memory; wait until Redis is idle again."""
    client: Any = server.client()
    before = float(client.info("memory")["used_memory"])

    def bytes_each(jobs: int) -> float:
        return (float(client.info("memory")["used_memory"]) - before) / jobs

    def idle() -> bool:
        info = client.info("persistence")
        return not (info["aof_rewrite_in_progress"] or info["aof_rewrite_scheduled"])

    first = min(depth, _FIRST_FILL)
    await submit(queue, first)
    if not depth:
        return FilledQueue(server, queue, 0, 0.0)
    a_job = bytes_each(first)
    most = affordable(depth, a_job, _free_memory())
    if most < depth:
        print_progress(
            f"{depth} waiting jobs of {a_job:.0f} bytes do not fit into memory; submitting {most}"
        )
    await submit(queue, most - first)
    wait_for(idle, "the append-only file is rewritten", deadline_s=_REWRITE_S)
    return FilledQueue(server, queue, most, bytes_each(most))


def affordable(depth: int, bytes_per_job: float, free_bytes: float) -> int:
    """Return how many of `depth` jobs fit into the share of memory that a test may use."""
    return min(depth, max(_FIRST_FILL, int(_MAX_MEMORY_SHARE * free_bytes / bytes_per_job)))


def _free_memory() -> float:
    """Return the bytes of memory available on this machine. Raises RunError."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return float(line.split()[1]) * 1024
    raise RunError("/proc/meminfo has no MemAvailable")


def new_job(pool: str = POOL) -> NewJob:
    """Return a job with a small request that is not streamed."""
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


async def submit(queue: JobQueue, count: int, pool: str = POOL) -> None:
    """Submit `count` jobs in large batches."""
    for jobs in _parts([new_job(pool) for _ in range(count)], _FILL_PER_CALL):
        await _submit(queue, jobs)


async def measure_round(
    filled: FilledQueue, jobs_per_call: int, round_index: int
) -> list[OperationCost]:
    """Measure each operation with `_BATCH * _BATCHES` jobs.

    Raises RunError if an operation is refused.
    """
    queue, server = filled.queue, filled.server
    spent = {
        operation: OperationCost(
            operation, jobs_per_call, filled.depth, round_index, jobs=_BATCH * _BATCHES
        )
        for operation in OPERATIONS
    }
    for _ in range(_BATCHES):
        new = _parts([new_job() for _ in range(_BATCH)], jobs_per_call)
        with spent["submit"].measure(server):
            await _all(lambda jobs: _submit(queue, jobs), new)
        with spent["claim"].measure(server):
            leased = await _all(lambda jobs: _claim(queue, len(jobs)), new)
        fence_token = (await queue.renew(0, _WORKER, "", _LEASE_S, [])).fence_token
        with spent["finish"].measure(server):
            await _all(lambda jobs, token=fence_token: _finish(queue, token, jobs), leased)  # type: ignore[misc]
    return list(spent.values())


async def _submit(queue: JobQueue, jobs: Sequence[NewJob]) -> None:
    refused = [r for r in await queue.submit_all(0, jobs, _NO_LIMIT) if not isinstance(r, int)]
    if refused:
        raise RunError(f"not submitted: {refused[0]}")


async def _claim(queue: JobQueue, count: int) -> list[LeasedJob]:
    leased = (await queue.acquire(0, _WORKER, count, _LEASE_S, _NO_SLOTS)).jobs
    if len(leased) != count:
        raise RunError(f"{len(leased)} jobs claimed instead of {count}")
    return leased


async def _finish(queue: JobQueue, fence_token: str, jobs: Sequence[LeasedJob]) -> None:
    step = make_step([(JobStream(job), b"", FinalEntry(1, b"", _ANSWER)) for job in jobs])
    lost = await queue.emit(0, _WORKER, fence_token, step)
    if lost:
        raise RunError(f"not finished: {lost}")


def _parts(items: Sequence[T], size: int) -> list[Sequence[T]]:
    return [items[begin : begin + size] for begin in range(0, len(items), size)]


async def _all(call: Callable[[T], Awaitable[R]], items: Sequence[T]) -> list[R]:
    """Call with each item, several at the same time; return the results."""
    left = iter(items)

    async def caller() -> list[R]:
        return [await call(item) for item in left]

    results = await asyncio.gather(*(caller() for _ in range(_CONCURRENT_CALLS)))
    return [result for part in results for result in part]

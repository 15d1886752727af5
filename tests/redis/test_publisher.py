"""The publisher, the lease and the advertised slots on a real queue."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.advertised_slots import advertiser
from shared.job.job import LeasedJob
from shared.job.result import PIECE_BYTES, JobResult
from shared.job.states import JobEvent, JobState
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store.answers import Body
from shared.store.interface import StoreTimeout, StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.harness.servers import one_redis_only
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    lease,
    log_entries,
    submit,
)
from worker.core import publisher as module
from worker.core.home_shards import HomeShards
from worker.core.lease import Lease
from worker.core.membership import Membership
from worker.core.output_buffer import OutputBuffer
from worker.core.publisher import Publisher
from worker.core.slot_adverts import AdvertisedSlots

DEADLINE_S = 60.0


class Worker:
    """A worker without an engine: the test produces its output."""

    def __init__(self, queue: JobQueue) -> None:
        self.free = 0
        self.buffers: dict[str, OutputBuffer] = {}
        self.lost: dict[str, str] = {}
        member = Membership(queue, POOL, WORKER, LEASE_S)
        self.slots = AdvertisedSlots(member, lambda: self.free, HomeShards(member))
        self.lease = Lease(member, lambda: list(self.buffers.values()), self._on_lost)
        metrics = WorkerMetrics(CollectorRegistry())
        self.publisher = Publisher(queue, metrics, self.lease, self.slots)
        self.task = asyncio.create_task(self.publisher.run())

    def _on_lost(self, job: LeasedJob, state: str) -> None:
        self.lost[job.id] = state
        self.buffers[job.id].discarded = True

    def start(self, job: LeasedJob) -> OutputBuffer:
        self.buffers[job.id] = OutputBuffer(job, self.publisher.notify)
        return self.buffers[job.id]

    async def finish(self, buffer: OutputBuffer, result: JobResult) -> str:
        async with asyncio.timeout(DEADLINE_S):
            outcome = await self.publisher.finish(buffer, result)
        del self.buffers[buffer.job.id]
        return outcome


@pytest.fixture
async def worker(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Worker]:
    monkeypatch.setattr(module, "_RETRY_CAP_S", 0.01)
    worker = Worker(queue)
    yield worker
    await end([worker.task])


async def wait_for_entries(queue: JobQueue, job_id: str, count: int) -> None:
    async def logged() -> bool:
        try:
            return len(await log_entries(queue, job_id, 0)) == count
        except StoreUnavailable:  # the test has closed the connection
            return False

    await eventually(logged, f"{count} entries of {job_id}")


def advertised(store: Redis) -> int:
    """The slots that the worker has advertised."""
    return int(store.zscore(keys.advertised(0, POOL), advertiser(WORKER, LEASE_S)) or 0)


async def test_long_results_are_stored_though_they_leave_in_several_calls(
    queue: JobQueue, worker: Worker
) -> None:
    for _ in range(5):
        await submit(queue, stream=False)
    jobs = await claim(queue)
    bodies = [bytes([ord("a") + n]) * (module._CALL_BYTES * 2 // 3) for n in range(5)]
    results = [
        JobResult(JobEvent.COMPLETE, "", 200, "application/json", body, 1, 0) for body in bodies
    ]
    outcomes = await asyncio.gather(
        *(
            worker.finish(worker.start(job), result)
            for job, result in zip(jobs, results, strict=True)
        )
    )
    assert outcomes == ["ok"] * 5
    for job, body in zip(jobs, bodies, strict=True):
        stored = await queue.get(job.id)
        assert stored is not None
        parts = [part async for part in Body(b"", queue, stored).parts()]
        assert (stored.state, b"".join(parts)) == (JobState.COMPLETED, body)
        assert max(map(len, parts)) <= PIECE_BYTES


async def test_the_outcome_of_a_result_is_the_jobs_state_or_that_it_was_discarded(
    queue: JobQueue, store: Redis, worker: Worker
) -> None:
    for _ in range(3):
        await submit(queue)
    kept, cancelled, gone = [worker.start(job) for job in await claim(queue)]
    await worker.lease.renew(0)
    store.delete(keys.job(0, gone.job.id))  # without a change of the fence
    outcomes = await asyncio.gather(*(worker.finish(each, answer()) for each in (kept, gone)))
    assert outcomes == ["ok", "gone"]
    await queue.cancel(cancelled.job.id, TENANT)
    assert await worker.finish(cancelled, answer()) == "discarded"
    assert worker.lost == {cancelled.job.id: "cancelled"}


async def test_a_result_whose_reply_was_lost_is_repeated_and_stored_once(
    queue: JobQueue, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    buffer = worker.start(await lease(queue))
    start_emit, started = queue.start_emit, 0

    def lose_the_reply(*args: Any) -> asyncio.Future[Any]:
        nonlocal started
        started += 1
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        start_emit(*args).add_done_callback(lambda _: reply.set_exception(StoreTimeout("no reply")))
        return reply

    monkeypatch.setattr(queue, "start_emit", lose_the_reply)
    await worker.lease.renew(0)
    buffer.chunk(b"x")
    assert await worker.finish(buffer, answer()) == "ok"
    assert started == 1
    assert [entry.end for entry in await log_entries(queue, buffer.job.id, 0)] == ["", "completed"]
    assert worker.lost == {}


@one_redis_only
async def test_output_is_kept_while_redis_refuses_writes(
    queue: JobQueue, store: Redis, worker: Worker, gateway: ChannelSubscriber
) -> None:
    buffer = worker.start(await lease(queue))
    await worker.lease.renew(0)
    store.replicaof("127.0.0.1", 1)  # read-only, with a primary that does not exist
    try:
        buffer.chunk(b"1")
        worker.publisher.on_step()

        async def retrying() -> bool:
            return bool(worker.publisher._retries)

        await eventually(retrying, "the call is being repeated")
        buffer.chunk(b"2")
        worker.publisher.on_step()
    finally:
        store.replicaof("NO", "ONE")
    await wait_for_entries(queue, buffer.job.id, 2)
    assert (
        b"".join(item for e in await log_entries(queue, buffer.job.id, 0) for item in e.items)
        == b"12"
    )
    assert [frame[1] for frame in gateway.frames()] == [1, 2]


async def test_a_connection_that_is_lost_during_renewals_costs_no_job(
    queue: JobQueue, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(queue))
    await worker.lease.renew(0)
    for seq in range(1, 6):
        store.client_kill_filter(_type="normal", skipme=True)
        buffer.chunk(b"x")
        worker.publisher.on_step()
        await wait_for_entries(queue, buffer.job.id, seq)
    assert not buffer.discarded
    assert worker.lost == {}


async def test_free_slots_are_advertised_with_the_output(
    queue: JobQueue, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(queue))
    await worker.lease.renew(0)
    worker.free = 3
    buffer.chunk(b"x")
    worker.publisher.on_step()
    await wait_for_entries(queue, buffer.job.id, 1)
    assert advertised(store) == 3


async def test_slots_of_a_refused_call_are_advertised_with_the_next_one(
    queue: JobQueue, store: Redis, worker: Worker
) -> None:
    buffer = worker.start(await lease(queue))
    await worker.lease.renew(0)
    await queue.watch(buffer.job.id, "gw-2", follow=True)  # invalidates the fencing token
    worker.free = 3
    buffer.chunk(b"1")
    worker.publisher.on_step()
    await wait_for_entries(queue, buffer.job.id, 1)
    assert advertised(store) == 0, "the call that carried the update was refused"
    buffer.chunk(b"2")
    worker.publisher.on_step()
    await wait_for_entries(queue, buffer.job.id, 2)
    assert advertised(store) == 3

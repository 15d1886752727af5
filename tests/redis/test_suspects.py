"""Suspects: jobs whose workers were lost twice without progress wait apart and run alone."""

from __future__ import annotations

import asyncio
from functools import partial

import pytest
import redis as sync_redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.job import LeasedJob
from shared.job.lanes import RETRY_LANE, SUSPECT_LANE
from shared.job.replies import IsolationStage
from shared.job.states import JobState
from shared.store.redis import keys, suspects
from shared.store.redis.job_queue import JobQueue
from shared.store.views import depths
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    emit_and_flush,
    entries_of,
    expire_lease,
    submit,
)
from tests.redis.worker_loops import chat, serving
from worker.core.claim_policy import PATIENCE_S
from worker.core.loop import WorkerLoop

ALONE, DRAINING, NONE = IsolationStage.ALONE, IsolationStage.DRAINING, IsolationStage.NONE


def update(worker: str = WORKER, slots: int = 0) -> SlotUpdate:
    return SlotUpdate(POOL, advertiser(worker, LEASE_S), slots, UNKNOWN)


async def lose(queue: JobQueue, job: LeasedJob, *, blame: bool = True) -> str:
    """The job's state after its worker was lost."""
    return (await queue.release([job], "worker_lost", blame=blame))[job.id]


async def suspect(queue: JobQueue, *, times: int = 2, body: bytes = chat(4)) -> str:
    """The id of a new job that was lost so often without progress."""
    job = await submit(queue, body=body, gateway="")
    for _ in range(times):
        assert await lose(queue, await claim_one(queue)) == JobState.QUEUED
    return job.id


async def test_a_job_that_was_lost_twice_waits_apart_and_a_claim_leaves_it(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    job_id = await suspect(queue, times=1)
    assert entries_of(store, job_id) == [RETRY_LANE]
    assert await lose(queue, await claim_one(queue)) == JobState.QUEUED
    assert entries_of(store, job_id) == [SUSPECT_LANE]
    queued = await queue.get(job_id)
    assert queued is not None
    assert queued.suspect
    assert await suspects.waiting(queue, POOL)
    acquired = await queue.acquire(0, WORKER, 9, LEASE_S, update(slots=9))
    assert (acquired.jobs, acquired.suspects, acquired.advertised) == ([], True, 9)
    waiting = {(lane.lane, lane.waiting) for lane in await depths(queue) if lane.waiting}
    assert waiting == {(SUSPECT_LANE, 1)}
    taken = await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, update())
    assert taken.job is not None
    assert (taken.job.id, taken.job.attempt) == (job_id, 3)
    assert not await suspects.waiting(queue, POOL)
    assert await lose(queue, taken.job) == JobState.FAILED
    ended = await queue.get(job_id)
    assert ended is not None
    assert not ended.suspect
    assert (ended.error_code, len(ended.attempts)) == ("too_many_attempts", 3)


async def test_progress_makes_it_an_ordinary_job_again(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    job_id = await suspect(queue)
    taken = (await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, update())).job
    assert taken is not None
    await emit_and_flush(queue, taken)
    assert await lose(queue, taken) == JobState.QUEUED
    assert entries_of(store, job_id) == [RETRY_LANE]


async def test_a_suspect_that_its_worker_gives_back_stays_one(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    job_id = await suspect(queue)
    for _ in range(3):
        taken = (await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, update())).job
        assert taken is not None
        assert await lose(queue, taken, blame=False) == JobState.QUEUED
        assert entries_of(store, job_id) == [SUSPECT_LANE]


@pytest.mark.parametrize("max_attempts", [1, 2])
async def test_with_fewer_attempts_a_job_fails_before_it_is_a_suspect(
    queue: JobQueue, max_attempts: int
) -> None:
    await submit(queue, max_attempts=max_attempts)
    for lost in range(1, max_attempts + 1):
        expected = JobState.FAILED if lost == max_attempts else JobState.QUEUED
        assert await lose(queue, await claim_one(queue)) == expected
    assert not await suspects.waiting(queue, POOL)


async def test_a_suspect_of_a_silent_worker_is_taken_back(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    job_id = await suspect(queue, times=2)
    taken = (await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, update())).job
    assert taken is not None
    expire_lease(store, taken)
    assert await queue.reap(0, LEASE_S) == {job_id: JobState.FAILED}


@pytest.mark.parametrize("how", ["cancel", "expire"])
async def test_a_waiting_suspect_can_be_ended(
    queue: JobQueue, store: sync_redis.Redis, how: str
) -> None:
    job_id = await suspect(queue)
    if how == "cancel":
        assert await queue.cancel(job_id, TENANT) == JobState.CANCELLED
    else:
        store.hset(keys.job(0, job_id), "deadline_us", 1)
        store.zadd(keys.base(0) + keys.DEADLINES, {job_id: 1})
        assert await queue.expire(0) == (1, {job_id: "expired"})
    assert not await suspects.waiting(queue, POOL)
    assert entries_of(store, job_id) == []


async def test_a_worker_with_a_job_on_its_way_gets_no_suspect(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    job_id = await suspect(queue)
    await claim(queue, 0, slots=2, acknowledged=UNKNOWN)
    await queue.acquire(0, WORKER, 2, LEASE_S, update(slots=2))
    other = await submit(queue)
    assert [job.id for job in control.assigned(queue)] == [other.id]
    offered = update()._replace(acknowledged=2)  # the worker has not received it yet
    refused = await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, offered)
    assert refused == (1, None)
    received = update()._replace(acknowledged=-1)
    taken = (await suspects.acquire(queue, 0, WORKER, 1, LEASE_S, received)).job
    assert taken is not None
    assert taken.id == job_id
    waits = await submit(queue)
    assert control.assigned(queue) == [], "its slots are withdrawn"
    assert [job.id for job in await claim(queue, worker="w-2")] == [waits.id]


async def test_one_worker_at_a_time_may_run_suspects(
    queue: JobQueue, store: sync_redis.Redis
) -> None:
    channels = [ChannelSubscriber(store, keys.control_channel(name)) for name in ("a", "b")]

    async def ask(worker: str, stage: IsolationStage) -> bool:
        return await suspects.isolate_worker(queue, POOL, worker, stage)

    assert await ask("a", DRAINING)
    assert await ask("a", DRAINING), "it may keep it"
    assert not await ask("b", DRAINING)
    assert await ask("b", ALONE), "a worker that runs nothing goes first"
    assert not await ask("a", ALONE)
    assert not await ask("a", NONE)
    assert not await ask("a", ALONE), "only the holder gives it up"
    assert not await ask("b", NONE)
    assert await ask("a", ALONE)
    channels[0].close()

    async def free() -> bool:
        return await ask("b", DRAINING)

    await eventually(free, "the holder has gone")
    channels[1].close()


async def is_over(queue: JobQueue, job_id: str) -> bool:
    job = await queue.get(job_id)
    return job is not None and job.state is JobState.COMPLETED


async def almost_suspect(queue: JobQueue) -> LeasedJob:
    """A job that becomes a suspect when this lease of a worker that is gone is lost."""
    job = await submit(queue, body=chat(4), gateway="")
    await lose(queue, await claim_one(queue, worker="gone"))
    leased = await claim_one(queue, worker="gone")
    assert leased.id == job.id
    return leased


def watch_suspects(loop: WorkerLoop) -> list[int]:
    """How many jobs the worker ran each time when it started a suspect."""
    beside: list[int] = []
    start = loop._isolation._start

    def counted(job: LeasedJob) -> None:
        beside.append(len(loop.runs))
        start(job)

    loop._isolation._start = counted
    return beside


async def test_an_idle_worker_runs_a_suspect_at_once_and_goes_on(
    queue: JobQueue, redis_url: str
) -> None:
    leased = await almost_suspect(queue)
    async with serving(queue, 4) as loop:
        first = await submit(queue, gateway="", body=chat(4))
        await eventually(lambda: is_over(queue, first.id), "the worker is ready")
        beside = watch_suspects(loop)
        await lose(queue, leased)
        await eventually(lambda: is_over(queue, leased.id), "the suspect has ended", PATIENCE_S * 5)
        assert beside == [0]
        later = await submit(queue, gateway="", body=chat(4))
        await eventually(lambda: is_over(queue, later.id), "an ordinary job has ended")
        assert not loop.slots.isolated


async def test_a_busy_worker_ends_its_jobs_runs_the_suspects_one_by_one_and_goes_on(
    queue: JobQueue, redis_url: str
) -> None:
    leased = [await almost_suspect(queue) for _ in range(3)]
    async with serving(queue, 8) as loop:
        beside = watch_suspects(loop)
        long = [
            (await submit(queue, body=chat(1200, ignore_eos=True), gateway="")).id for _ in range(3)
        ]

        async def busy() -> bool:
            return len(loop.runs) == 3

        await eventually(busy, "three jobs run")
        for job in leased:
            await lose(queue, job)

        async def isolated() -> bool:
            return loop.slots.isolated

        await eventually(isolated, "it stops claiming")
        waits = await submit(queue, gateway="", body=chat(4))
        assert loop.slots.decision.count == 0
        for job_id in (*long, *(job.id for job in leased), waits.id):
            await eventually(partial(is_over, queue, job_id), "it has ended")
        assert beside[0] == 0
        assert max(beside) <= len(leased), "beside suspects with output at most"
    ended = [await queue.get(job_id) for job_id in (*long, waits.id)]
    assert all(job is not None and len(job.attempts) == 1 for job in ended)


async def test_of_two_busy_workers_only_one_stops_claiming(queue: JobQueue, redis_url: str) -> None:
    leased = [await almost_suspect(queue) for _ in range(2)]
    async with serving(queue, 4) as one, serving(queue, 4, "w-2") as two:
        workers = (one, two)
        alone: list[tuple[bool, bool]] = []
        ids = [
            (await submit(queue, body=chat(500, ignore_eos=True), gateway="")).id for _ in range(16)
        ]

        async def busy() -> bool:
            return all(worker.runs for worker in workers)

        await eventually(busy, "both run jobs")
        for job in leased:
            await lose(queue, job)

        async def look() -> None:
            while True:
                alone.append((one.slots.isolated, two.slots.isolated))
                await asyncio.sleep(0.002)

        async def over() -> bool:
            return all([await is_over(queue, job.id) for job in leased])

        looking = asyncio.create_task(look())
        await eventually(over, "the suspects have ended")
        looking.cancel()
        for job_id in ids:
            await eventually(partial(is_over, queue, job_id), "it has ended")
    # The first to be idle takes over from the other, which stops only for that moment.
    assert (True, False) in alone or (False, True) in alone

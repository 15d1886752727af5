"""A draining worker on a real queue: its jobs move to other workers as far as these have room."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import cast

import pytest
from redis import Redis

from shared.job.advertised_slots import advertiser
from shared.job.job import Job, NewJob
from shared.job.lanes import DEFAULT, FLEX
from shared.platform.tasks import end
from shared.store.operators import OperationAnswers
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.views import next_place
from tests.harness.waiting import eventually
from tests.redis.conftest import LEASE_S, POOL, WORKER, claim, submit
from tests.redis.worker_loops import chat, serving
from worker.core.adapters import Adapters
from worker.core.drain import Drain
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership
from worker.core.operations import ASLEEP, Operations
from worker.core.registration import Registration

OTHER = "w-2"
SOON_S = 20.0
"""Far shorter than the drain deadline of these tests."""
LONG = chat(4000, ignore_eos=True)


async def drain(
    loop: WorkerLoop, queue: JobQueue, deadline_s: float = 600.0, *, engine_failed: bool = False
) -> None:
    loop.drain()
    await queue.withdraw_slots(POOL, WORKER, 10.0)
    drain = Drain(Membership(queue, POOL, WORKER, LEASE_S), loop)
    async with asyncio.timeout(SOON_S):
        await drain.run(deadline_s, asyncio.Event(), lambda: engine_failed)


async def found(queue: JobQueue, job: NewJob) -> Job:
    shown = await queue.get(job.id)
    assert shown is not None
    return shown


async def start(queue: JobQueue, loop: WorkerLoop, bodies: Sequence[bytes]) -> list[NewJob]:
    """Jobs that the worker runs."""
    jobs = [await submit(queue, stream=False, gateway="", body=body) for body in bodies]

    async def running() -> bool:
        return len(loop.runs) == len(jobs)

    await eventually(running, "they run")
    return jobs


async def test_all_jobs_move_when_another_worker_has_room(queue: JobQueue, redis_url: str) -> None:
    async with serving(queue, slots=4) as loop:
        jobs = await start(queue, loop, [LONG] * 3)
        async with serving(queue, slots=4, worker=OTHER) as other:
            await advertises(queue, 4)
            await drain(loop, queue)
            assert not loop.runs

            async def moved() -> bool:
                return other.runs.keys() == {job.id for job in jobs}

            await eventually(moved, "the other worker has them")
            for job in jobs:
                shown = await found(queue, job)
                assert [each.outcome for each in shown.attempts][:1] == ["handed_over"]
                assert other.runs[job.id].job.attempt == 1  # the attempt does not count


async def test_only_as_many_move_as_there_is_room_for_and_the_others_finish(
    queue: JobQueue, redis_url: str
) -> None:
    async with serving(queue, slots=4) as loop:
        jobs = await start(queue, loop, [chat(300, ignore_eos=True)] * 3)
        async with serving(queue, slots=1, worker=OTHER):
            await advertises(queue, 1)
            await drain(loop, queue)

            async def completed() -> bool:
                return {(await found(queue, job)).state for job in jobs} == {"completed"}

            await eventually(completed, "all are completed")
        outcomes = [(await found(queue, job)).attempts[0].outcome for job in jobs]
        assert "handed_over" in outcomes
        assert "completed" in outcomes


async def test_jobs_of_an_engine_that_fails_while_the_worker_drains_are_blamed(
    queue: JobQueue, redis_url: str
) -> None:
    async with serving(queue, slots=4) as loop:
        (job,) = await start(queue, loop, [LONG])
        await drain(loop, queue, engine_failed=True)
        shown = await found(queue, job)
        assert (shown.state, shown.attempts[0].outcome) == ("queued", "engine_died")


async def room(queue: JobQueue) -> tuple[int, int]:
    """Free slots of other workers, and jobs that wait for them."""
    last = await next_place(queue, POOL, FLEX, "", but_of=WORKER)
    return last.free, last.others


async def test_room_is_what_other_workers_advertise(queue: JobQueue, store: Redis) -> None:
    assert await room(queue) == (0, 0)
    for worker, slots in ((WORKER, 9), (OTHER, 3), (f"{WORKER}0", 2)):
        await claim(queue, worker=worker, slots=slots)
    store.zincrby(keys.advertised(0, POOL), -5, advertiser(f"{WORKER}0", 10.0))
    store.zadd(keys.waiting(0, POOL, DEFAULT), {"job_1": 1})
    assert await room(queue) == (3, 1)


async def advertises(queue: JobQueue, slots: int) -> None:
    async def check() -> bool:
        return (await room(queue))[0] == slots

    await eventually(check, "the other worker advertises its slots")


@pytest.fixture(autouse=True)
def logged(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "flotilla")


async def test_a_drain_does_not_wait_for_a_sleep_that_waits_for_jobs(
    queue: JobQueue, redis_url: str
) -> None:
    async with serving(queue, slots=4) as loop:
        await start(queue, loop, [LONG])
        member, stopped = Membership(queue, POOL, WORKER, LEASE_S), asyncio.Event()
        adapters = Adapters(member, loop._engine, loop, cast(Registration, None))
        operations = Operations(member, loop, adapters, stopped.set)
        running = asyncio.create_task(operations.run())
        calls = loop.control.operator_calls
        calls.put_nowait(("op-1", "sleep", b'{"mode": "wait"}'))

        async def sleeps() -> bool:
            return loop.slots.paused == ASLEEP

        await eventually(sleeps, "the sleep has begun")
        calls.put_nowait(("op-2", "drain", b'{"wrong": 1}'))
        calls.put_nowait(("op-3", "drain", b"{}"))
        async with asyncio.timeout(SOON_S):
            await stopped.wait()
        assert loop.runs
        answers = await OperationAnswers(queue.servers).read("op-3")
        assert [answer.status for answer in answers.values()] == [200]
        assert not await OperationAnswers(queue.servers).read("op-1")
        await end([running])

"""Advertised slots: a job that finds one is leased by the script that submits it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator

import pytest
from redis import Redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.job import LeasedJob
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from shared.store.views import places
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    emit,
    emit_token,
    entries_of,
    expire_lease,
    finish,
    make_job,
    output,
    pending,
    renew,
    submit,
    submit_one,
)
from tests.redis.worker_loops import chat, serving
from worker.core import control_channel as module
from worker.core.loop import WorkerLoop

ADVERTISER = advertiser(WORKER, LEASE_S)


def advertised(store: Redis, shard: int = 0) -> dict[str, int]:
    """Advertised slots by worker, without those that have none."""
    entries = store.zrangebyscore(keys.advertised(shard, POOL), 1, "+inf", withscores=True)
    return {who.decode().split()[0]: int(slots) for who, slots in entries}


@pytest.fixture
def other(store: Redis) -> Iterator[ChannelSubscriber]:
    """A second worker with a subscription, `w-2`."""
    subscriber = ChannelSubscriber(store, keys.control_channel("w-2"))
    yield subscriber
    subscriber.close()


async def test_a_job_is_assigned_to_a_worker_with_an_advertised_slot(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    assert await claim(queue, 4, slots=4) == []
    job = await submit(queue, body=b"\x00\xff", endpoint="/e")
    (leased,) = control.assigned(queue)
    assert (leased.id, leased.body, leased.endpoint) == (job.id, b"\x00\xff", "/e")
    assert (leased.attempt, leased.shard, leased.stream, len(leased.lease_id)) == (1, 0, True, 16)
    assert leased.waited_s == 0
    assert (leased.generation, leased.watchers, leased.watched) == (1, GATEWAY, False)
    seen = await queue.get(job.id)
    assert seen is not None
    assert (seen.state, seen.attempts[0].worker) == (JobState.IN_PROGRESS, WORKER)
    assert await places(queue, [seen]) == [None]
    assert (pending(store), advertised(store)) == (1, {WORKER: 3})
    assert store.llen(keys.wake_ups(0, POOL)) == 0
    assert await claim(queue) == []
    assert await finish(queue, leased, 1, answer()) == "ok"
    assert (pending(store), entries_of(store, job.id)) == (0, [])


async def test_an_assigned_job_may_be_written_under_the_workers_fencing_token(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, gateway: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    await submit(queue)
    (first,) = control.assigned(queue)
    assert first.fence_token == "", "it has none before it renews"
    renewal = await queue.renew(0, WORKER, "", LEASE_S, [first])
    await submit(queue)
    (second,) = control.assigned(queue)
    assert second.fence_token == renewal.fence_token != ""
    step = make_step([output(second, 1)])
    assert await queue.emit(0, WORKER, renewal.fence_token, step) == {}
    assert [frame[0].decode() for frame in gateway.frames()] == [second.id]


async def test_a_renewal_reports_a_job_that_was_cancelled_before_it_arrived(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    before = await queue.renew(0, WORKER, "", LEASE_S, [])
    job = await submit(queue)
    (leased,) = control.assigned(queue)
    await queue.cancel(job.id, TENANT)
    after = await queue.renew(0, WORKER, before.fence_token, LEASE_S, [leased])
    assert leased.fence_token != after.fence_token, (
        "so the worker renews before it writes about the job"
    )
    assert after.lost == {job.id: "cancelled"}


async def test_the_depth_of_an_assigned_job_is_zero(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    await claim(queue, 1, slots=1)
    assert [await submit_one(queue, make_job(), 10) for _ in range(3)] == [0, 1, 2]


async def test_no_more_jobs_are_assigned_than_slots_and_the_rest_is_queued_in_order(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 2, slots=2)
    jobs = [make_job() for _ in range(5)]
    assert await queue.submit_all(0, jobs, 10) == [0, 0, 1, 2, 3]
    messages = control.messages()
    assert len(messages) == 1, "jobs of one call come in one message"
    assert advertised(store) == {}
    assert [job.id for job in await claim(queue)] == [job.id for job in jobs[2:]]


async def test_no_job_overtakes_a_queued_one(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    waiting = await submit(queue, lane=FLEX)
    await emit(queue, [], slots=SlotUpdate(POOL, ADVERTISER, 8, UNKNOWN))
    for lane in (FLEX, DEFAULT, PRIORITY):
        await submit(queue, lane=lane)
    assert control.messages() == []
    got = await claim(queue)
    assert (len(got), got[-2].id) == (4, waiting.id)


async def test_a_worker_whose_claim_was_filled_advertises_nothing(
    queue: JobQueue, store: Redis
) -> None:
    for _ in range(3):
        await submit(queue)
    await claim(queue, 2, slots=8)
    assert advertised(store) == {}
    await claim(queue, 2, slots=8)
    assert advertised(store) == {WORKER: 7}


async def test_a_worker_that_is_not_subscribed_gets_nothing(queue: JobQueue, store: Redis) -> None:
    await claim(queue, 4, slots=4)
    job = await submit(queue)
    assert advertised(store) == {}
    assert [leased.id for leased in await claim(queue, worker="w-3")] == [job.id]


async def test_the_worker_with_most_free_slots_comes_first(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await claim(queue, 1, slots=3)
    await claim(queue, 1, slots=5, worker="w-2")
    await claim(queue, 1, slots=9, worker="gone")
    for _ in range(4):
        await submit(queue)
    assert (len(control.assigned(queue)), len(other.assigned(queue))) == (1, 3)
    assert advertised(store) == {WORKER: 2, "w-2": 2}


async def test_jobs_of_one_call_are_shared_by_slots_and_keep_their_order(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await claim(queue, 1, slots=3)
    await claim(queue, 1, slots=5, worker="w-2")
    lanes = (DEFAULT, PRIORITY, DEFAULT)
    jobs = [make_job(lane=lanes[n % 3]) for n in range(10)]
    assert await queue.submit_all(0, jobs, 10) == [0] * 8 + [1, 2]
    shares = [[leased.id for leased in who.assigned(queue)] for who in (control, other)]
    assert [len(share) for share in shares] == [3, 5]
    assert sorted(shares[0] + shares[1]) == sorted(job.id for job in jobs[:8])
    for lane in (DEFAULT, PRIORITY):
        ids = [job.id for job in jobs if job.lane == lane]
        for share in shares:
            places = [ids.index(job_id) for job_id in share if job_id in ids]
            assert places == sorted(places)
    assert advertised(store) == {}
    assert {leased.id for leased in await claim(queue)} == {job.id for job in jobs[8:]}


async def test_a_job_that_is_submitted_twice_in_one_call_is_assigned_once(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    job = make_job()
    assert await queue.submit_all(0, [job, job], 10) == [0, 0]
    assert [leased.id for leased in control.assigned(queue)] == [job.id]
    assert (pending(store), advertised(store)) == (1, {WORKER: 3})


async def test_the_groups_position_does_not_matter(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    stream = keys.queue(0, POOL, DEFAULT)
    # The group's position is behind the job.
    store.xgroup_create(stream, keys.GROUP, "9999999999999-0", mkstream=True)
    job = make_job()
    assert await queue.submit_all(0, [job], 10) == [0]
    assert [leased.id for leased in control.assigned(queue)] == [job.id]
    assert pending(store) == 1
    assert await queue.check(0) == {}


async def test_jobs_in_flight_take_slots(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    for _ in range(6):
        await submit(queue)  # the worker has received none of them yet
    assert len(control.assigned(queue)) == 4
    assert await claim(queue, 4, slots=4, acknowledged=4) == []
    assert advertised(store) == {}
    # It has received three, and one has ended: there is a slot for one of the two queued ones.
    assert len(await claim(queue, 2, slots=2, acknowledged=-3)) == 1
    # It has received the fourth, and two more have ended.
    assert len(await claim(queue, 2, slots=2, acknowledged=-1)) == 1
    assert advertised(store) == {WORKER: 1}


async def test_jobs_in_flight_are_subtracted_from_the_update_of_a_step(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    for _ in range(3):
        await submit(queue)
    # It has received one, which has ended: of four free slots, two are for jobs in flight.
    await emit(queue, [], slots=SlotUpdate(POOL, ADVERTISER, 4, 3))
    assert advertised(store) == {WORKER: 2}
    await emit(queue, [], slots=SlotUpdate(POOL, ADVERTISER, 2, 2))
    assert advertised(store) == {WORKER: 2}


async def test_slots_of_lost_workers_are_removed(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 1, slots=3)
    await claim(queue, 1, slots=3, worker="gone")
    await submit(queue, pool=POOL)
    await queue.sweep(0)
    assert advertised(store) == {WORKER: 2}
    assert store.zcard(keys.advertised(0, POOL)) == 1


async def test_the_update_of_a_step_is_advertised(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 1, slots=1)
    await submit(queue)
    (job,) = control.assigned(queue)
    await emit(queue, [output(job, 1)], slots=SlotUpdate(POOL, ADVERTISER, 2, 0))
    assert advertised(store) == {WORKER: 2}
    await emit(queue, [output(job, 2)])
    assert advertised(store) == {WORKER: 2}
    await emit(queue, [output(job, 3)], slots=SlotUpdate(POOL, ADVERTISER, 0, 2))
    assert advertised(store) == {}


async def test_withdrawn_slots_are_not_assigned(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    await queue.withdraw_slots(POOL, WORKER, LEASE_S)
    await submit(queue)
    assert (advertised(store), control.messages()) == ({}, [])


async def test_a_worker_without_a_lease_gets_nothing_more(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    job = await submit(queue)
    (leased,) = control.assigned(queue)
    expire_lease(store, leased)
    assert await queue.reap(0, LEASE_S) == {job.id: "queued"}
    assert advertised(store) == {}
    assert [(again.id, again.attempt) for again in await claim(queue)] == [(job.id, 2)]


async def test_a_large_request_is_claimed(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    job = await submit(queue, body=b"x" * (1 << 17))
    assert (control.messages(), advertised(store)) == ([], {WORKER: 4})
    assert [leased.id for leased in await claim(queue)] == [job.id]


async def test_a_repeated_submit_assigns_no_job_twice(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    await claim(queue, 4, slots=4)
    job = make_job()
    await submit_one(queue, job, 10)
    await submit_one(queue, job, 10)  # the first reply was lost
    assert [leased.id for leased in control.assigned(queue)] == [job.id]


async def test_a_worker_rejects_assigned_jobs_that_it_did_not_receive(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await claim(queue, 8, slots=8)
    for _ in range(4):
        await submit(queue)
    received, missed, old, young = control.assigned(queue)
    await emit_token(queue, old, 1)
    for leased in (received, missed, old):
        expire_lease(store, leased)
    assert await queue.reject_unreceived(POOL, "w-2", [], 1.0) == {}
    states = await queue.reject_unreceived(POOL, WORKER, [received.id], 1.0)
    assert states == {missed.id: "queued", old.id: "queued"}
    assert await queue.reject_unreceived(POOL, WORKER, [received.id], 1.0) == {}
    again = await claim(queue, worker="w-2")
    assert [(job.id, job.attempt) for job in again] == [(missed.id, 1), (old.id, 1)]
    assert await renew(queue, WORKER, [received, young]) == {}
    assert await renew(queue, WORKER, [missed]) == {missed.id: "in_progress"}


@pytest.mark.parametrize("damage", ["gone", "ended", "forgotten"])
async def test_other_entries_in_the_lane_do_no_harm(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, damage: str
) -> None:
    stray = await submit(queue)
    store.zrem(keys.waiting(0, POOL, DEFAULT), stray.id)
    if damage == "gone":
        store.delete(keys.job(0, stray.id))
    elif damage == "ended":
        store.hset(keys.job(0, stray.id), "state", "cancelled")
    await emit(queue, [], slots=SlotUpdate(POOL, ADVERTISER, 4, UNKNOWN))
    job = await submit(queue)
    assert [leased.id for leased in control.assigned(queue)] == [job.id]
    found = await claim(queue, worker="w-2")
    assert [leased.id for leased in found] == ([stray.id] if damage == "forgotten" else [])
    assert pending(store) == 1 + len(found)


async def test_a_worker_advertises_its_slots_and_withdraws_them_when_it_drains(
    queue: JobQueue, store: Redis, redis_url: str
) -> None:
    async with serving(queue, slots=4) as loop:

        async def advertises_all() -> bool:
            return advertised(store) == {WORKER: 4}

        await eventually(advertises_all, "the idle worker advertises its slots")
        jobs = []
        for n in range(30):
            job = make_job(stream=bool(n % 2), body=chat(3), gateway="")
            jobs.append(job)
            await submit_one(queue, job, 100)

        async def all_done() -> bool:
            ended = [await queue.get(job.id) for job in jobs]
            return all(job is not None and job.state is JobState.COMPLETED for job in ended)

        await eventually(all_done, "every job is done, assigned or claimed")
        await eventually(advertises_all, "all slots are advertised again")
        loop.drain()

        async def advertises_nothing() -> bool:
            return advertised(store) == {}

        await eventually(advertises_nothing, "a draining worker advertises nothing")


async def test_a_lost_control_message_delays_the_job_and_does_not_lose_it(
    queue: JobQueue, store: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_DELIVERY_S", 0.05)
    async with serving(queue, slots=4) as loop:

        async def advertises_all() -> bool:
            return advertised(store) == {WORKER: 4}

        await eventually(advertises_all, "the idle worker advertises its slots")
        lost: list[bytes] = []
        with monkeypatch.context() as patch:
            patch.setattr(loop.control, "on_message", lost.append)
            job = make_job(body=chat(3), gateway="")
            assert await submit_one(queue, job, 100) == 0

            async def published() -> bool:
                return bool(lost)

            await eventually(published, "the message was published")
        loop.control.on_reconnect()  # as the subscription does

        async def done() -> bool:
            ended = await queue.get(job.id)
            return ended is not None and ended.state is JobState.COMPLETED

        await eventually(done, "the job is done")
        ended = await queue.get(job.id)
        assert ended is not None
        await eventually(advertises_all, "the slot of the lost message is advertised again")
        assert [attempt.outcome for attempt in ended.attempts] == ["not_received", "completed"]


async def test_no_worker_ever_holds_more_jobs_than_slots(
    queue: JobQueue, redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    most = 0
    start = WorkerLoop._start

    def count(loop: WorkerLoop, job: LeasedJob) -> None:
        nonlocal most
        start(loop, job)
        entering = sum(not run.buffer.reached_engine for run in loop.runs.values())
        most = max(most, loop._engine.load().unfinished + entering)

    monkeypatch.setattr(WorkerLoop, "_start", count)
    async with contextlib.AsyncExitStack() as workers:
        for name in ("w-1", "w-2", "w-3"):
            await workers.enter_async_context(serving(queue, slots=4, worker=name))
        jobs = [make_job(body=chat(1 + n % 7), gateway="") for n in range(400)]
        for n in range(0, 400, 20):  # in bursts, each larger than the free slots
            await asyncio.gather(*(submit_one(queue, job, 1000) for job in jobs[n : n + 20]))
            await asyncio.sleep(0.003 * (n % 3))

        async def all_done() -> bool:
            ended = [await queue.get(job.id) for job in jobs]
            return all(job is not None and job.state is JobState.COMPLETED for job in ended)

        await eventually(all_done, "every job is done")
    assert most == 4


async def test_a_slot_that_was_assigned_since_a_claim_was_decided_is_not_claimed_again(
    queue: JobQueue, redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []
    most = 0
    start = WorkerLoop._start

    def count(loop: WorkerLoop, job: LeasedJob) -> None:
        nonlocal most
        start(loop, job)
        started.append(job.id)
        most = max(most, len(loop.runs))

    monkeypatch.setattr(WorkerLoop, "_start", count)
    decided, send = asyncio.Event(), asyncio.Event()
    async with serving(queue, slots=1) as loop:

        async def advertises_its_slot() -> bool:
            return advertised(store) == {WORKER: 1}

        await eventually(advertises_its_slot, "the idle worker advertises its slot")

        async def settled_late(shard: int) -> None:
            decided.set()
            await send.wait()

        monkeypatch.setattr(loop.advertised_slots, "wait_until_settled", settled_late)
        store.rpush(keys.wake_ups(0, POOL), "1")
        await decided.wait()
        first, second = (make_job(body=chat(300, ignore_eos=True), gateway="") for _ in range(2))
        for job in (first, second):
            await submit_one(queue, job, 1000)

        async def is_assigned() -> bool:
            return started == [first.id]

        await eventually(is_assigned, "the first job took the advertised slot")
        send.set()

        async def both_done() -> bool:
            ended = [await queue.get(job.id) for job in (first, second)]
            return all(job is not None and job.state is JobState.COMPLETED for job in ended)

        await eventually(both_done, "both jobs are done")
    assert started == [first.id, second.id]
    assert most == 1

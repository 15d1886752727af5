"""Acquire: best lane first, never more than asked for, each job to one worker."""

from __future__ import annotations

from shared.job.frames import FrameKind
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.states import JobState
from shared.store.interface import Store
from shared.store.views import places
from tests.redis.conftest import (
    GATEWAY,
    LEASE_S,
    TENANT,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    submit,
)


async def test_the_lanes_come_in_their_order_and_each_in_its_own(queue: Store) -> None:
    lanes = [FLEX, DEFAULT, PRIORITY, FLEX, DEFAULT, PRIORITY]
    ids = [(await submit(queue, lane=lane)).id for lane in lanes]
    got = [job.id for job in await claim(queue)]
    assert got == [ids[i] for i in (2, 5, 1, 4, 0, 3)]


async def test_released_jobs_go_before_all_others(queue: Store) -> None:
    flex = await submit(queue, lane=FLEX)
    await queue.release(await claim(queue), "drained", blame=False)
    priority = await submit(queue, lane=PRIORITY)
    assert [job.id for job in await claim(queue)] == [flex.id, priority.id]


async def test_no_job_is_given_twice(queue: Store) -> None:
    ids = [(await submit(queue)).id for _ in range(6)]
    first = await claim(queue, 4, worker="a")
    second = await claim(queue, 4, worker="b")
    assert [job.id for job in first + second] == ids
    assert len({job.lease_id for job in first + second}) == 6


async def test_a_claimed_job_and_its_record(queue: Store) -> None:
    job = await submit(queue, body=b"\x00\xff", endpoint="/e")
    leased = await claim_one(queue)
    assert (leased.id, leased.body, leased.endpoint) == (job.id, b"\x00\xff", "/e")
    assert leased.tenant == TENANT
    assert (leased.attempt, leased.shard, leased.stream, len(leased.lease_id)) == (1, 0, True, 16)
    assert 0 <= leased.waited_s < 60
    seen = await queue.get(job.id)
    assert seen is not None
    assert seen.state is JobState.IN_PROGRESS
    assert [a.worker for a in seen.attempts] == [WORKER]
    assert await places(queue, [seen]) == [None]


async def test_jobs_of_another_pool_are_left_alone(queue: Store) -> None:
    await submit(queue, pool="other")
    assert await claim(queue) == []


async def test_many_cancelled_jobs_are_cleared_over_several_calls(
    queue: Store,
) -> None:
    for _ in range(70):
        await queue.cancel((await submit(queue)).id, TENANT)
    wanted = await submit(queue)
    got = await claim(queue, 1) + await claim(queue, 1)
    assert [job.id for job in got] == [wanted.id]


async def test_an_empty_pool_has_no_job(queue: Store) -> None:
    assert await claim(queue) == []


async def test_only_watchers_receive_the_start(
    queue: Store, gateway: ChannelSubscriber, other_gateway: ChannelSubscriber
) -> None:
    await submit(queue)
    watched = await submit(queue, gateway="")
    await queue.watch(watched.id, "gw-2", follow=True)
    await claim(queue)
    assert gateway.frames() == []
    assert other_gateway.frames() == [
        (watched.id.encode(), 0, FrameKind.STARTED, b"", WORKER.encode())
    ]


async def test_a_lease_has_the_gateways_that_watch(queue: Store) -> None:
    unwatched, waited_for, watched = [
        await submit(queue, gateway=g) for g in ("", GATEWAY, GATEWAY)
    ]
    await queue.watch(watched.id, "gw-2", follow=True)
    watchers = {job.id: (job.watchers, job.watched) for job in await claim(queue)}
    assert watchers == {
        unwatched.id: ("", False),
        waited_for.id: (GATEWAY, False),
        watched.id: (f"{GATEWAY} gw-2", True),
    }


async def test_the_fence_token_of_one_worker_is_not_anothers(queue: Store) -> None:
    await queue.renew(0, WORKER, "", LEASE_S, [])
    await submit(queue)
    assert (await claim_one(queue, worker="w-2")).fence_token == ""


async def test_every_lease_of_a_job_is_a_generation_of_its_own(queue: Store) -> None:
    await submit(queue)
    generations = []
    for _ in range(3):
        job = await claim_one(queue)
        generations.append((job.generation, job.attempt))
        await queue.release([job], "drained", blame=False)
    assert generations == [(1, 1), (2, 1), (3, 1)]

"""Placement: a job goes to the worker that has run the beginning of its prompt last."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from redis import Redis

from shared.job import placement
from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.placement import HASH_BYTES, PlacementRules
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    make_job,
    open_queue,
    pass_deadline,
    submit,
)
from tests.redis.test_queue_consumer import DEADLINE_S, opened

OTHER = "w-2"
WARM = f"{keys.base(0)}{keys.WARM}:{POOL}"
BEFORE = f"{keys.base(0)}{keys.WARM_BEFORE}:{POOL}"
PREFIXES = f"{keys.base(0)}{keys.WAITING_PREFIXES}:{POOL}"
LARGE = b'{"model": "m"}'.ljust(70_000)
"""Too large for a control message."""


def prefixes(name: str, depths: int = 2) -> bytes:
    """The hashes of a prompt that shares its prefixes with those of the same name only."""
    return b"".join(f"{name}{depth}".encode().ljust(HASH_BYTES) for depth in range(depths))


SHORT, LONG = prefixes("short", 1), prefixes("long", 4)


@pytest.fixture
def other(store: Redis) -> Iterator[ChannelSubscriber]:
    """The control channel of a second worker."""
    subscriber = ChannelSubscriber(store, keys.control_channel(OTHER))
    yield subscriber
    subscriber.close()


@pytest.fixture(autouse=True)
def patience(queue: JobQueue) -> None:
    """As many seconds as no test takes."""
    queue.placement = PlacementRules(patience_s=60.0)


async def warm(queue: JobQueue, worker: str, *names: bytes) -> None:
    """The worker runs jobs with these prefixes."""
    for name in names:
        await submit(queue, prefixes=name)
        await claim_one(queue, worker)


async def taken(queue: JobQueue, count: int, worker: str, slots: int = 0) -> list[str]:
    return [job.id for job in await claim(queue, count, worker, slots=slots or count)]


async def left_s(queue: JobQueue, worker: str, count: int = 4) -> float:
    """What a claim that brings nothing tells."""
    update = SlotUpdate(POOL, advertiser(worker, LEASE_S), count, UNKNOWN)
    acquired = await queue.acquire(0, worker, count, LEASE_S, update)
    assert acquired.jobs == []
    assert acquired.advertised == count, "other jobs may still come to it"
    return acquired.left_s


def ids(channel: ChannelSubscriber, queue: JobQueue) -> list[str]:
    return [job.id for job in channel.assigned(queue)]


async def test_a_short_prefix_is_not_worth_many_slots(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, SHORT)
    assert await taken(queue, 8, WORKER) == await taken(queue, 5, OTHER) == []
    first, second = await submit(queue, prefixes=SHORT), await submit(queue, prefixes=SHORT)
    assert ids(other, queue) == [first.id], "2 blocks are worth less than 4 slots"
    assert ids(control, queue) == [second.id]
    assert ids(control, queue) == ids(other, queue) == []
    third = await submit(queue, prefixes=SHORT)
    assert ids(control, queue) == [third.id], "it is the warm one now"


async def test_workers_with_many_slots_are_compared_by_their_part(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, SHORT, prefixes("x", 3))
    assert await taken(queue, 256, WORKER) == await taken(queue, 200, OTHER) == []
    first = await submit(queue, prefixes=SHORT)
    assert ids(other, queue) == [first.id], "56 of 256 slots are worth less than 2 blocks"
    assert await taken(queue, 150, OTHER) == []
    second = await submit(queue, prefixes=SHORT)
    assert ids(control, queue) == [second.id]
    assert await taken(queue, 0, OTHER) == [], "it is full now"
    deep = await submit(queue, prefixes=prefixes("x", 3))
    assert control.assigned(queue) == [], "32 blocks are worth waiting for"
    assert await taken(queue, 1, OTHER) == [deep.id]


async def test_slots_are_counted_where_plain_jobs_come_in_the_same_call(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    assert await taken(queue, 3, WORKER) == await taken(queue, 4, OTHER) == []
    jobs = [make_job(prefixes=each) for each in (b"", LONG, b"", b"", LONG, b"", LONG, b"", b"")]
    leased = (await queue.submit_all(0, jobs, 100)).count(0)
    mine, others = len(ids(control, queue)), len(ids(other, queue))
    assert leased == mine + others >= 6
    left = [store.zscore(keys.advertised(0, POOL), advertiser(w, LEASE_S)) for w in (WORKER, OTHER)]
    assert left == [3 - mine, 4 - others]


async def test_a_job_waits_for_its_warm_worker_that_is_full(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    assert await taken(queue, 4, WORKER) == []
    job = await submit(queue, prefixes=LONG)
    assert control.assigned(queue) == []
    assert store.llen(keys.wake_ups(0, POOL)) == 1, "who is idle looks when it may take the job"
    assert 50 < await left_s(queue, WORKER) < 60
    assert await taken(queue, 1, OTHER) == [job.id]


async def test_a_job_does_not_wait_for_a_worker_that_is_gone(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    await queue.withdraw_slots(POOL, OTHER, LEASE_S)
    assert await taken(queue, 4, WORKER) == []
    job = await submit(queue, prefixes=LONG)
    assert ids(control, queue) == [job.id]


async def test_a_job_does_not_wait_for_a_worker_that_has_lost_its_connection(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    assert await taken(queue, 2, OTHER) == await taken(queue, 1, WORKER) == []
    job = await submit(queue, prefixes=LONG)
    assert ids(control, queue) == [job.id], "no connection is subscribed to its control channel"


async def test_other_jobs_go_on_while_one_waits_for_its_warm_worker(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    waiting = [await submit(queue, prefixes=LONG, tenant=each) for each in "abb"]
    plain = await submit(queue, tenant="b")
    assert await taken(queue, 4, WORKER) == [plain.id]
    assert await taken(queue, 4, WORKER) == []
    assert sorted(await taken(queue, 4, OTHER)) == sorted(job.id for job in waiting)
    assert await taken(queue, 4, WORKER) == []


async def test_a_claim_leaves_the_jobs_of_so_many_tenants_at_most(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    left = [(await submit(queue, prefixes=LONG, tenant=f"t{n}")).id for n in range(32)]
    assert await left_s(queue, WORKER) > 0
    more = [(await submit(queue, prefixes=LONG, tenant=f"u{n}")).id for n in range(18)]
    first = await taken(queue, 64, WORKER)
    assert len(first) == len(more), "those of 32 tenants are left"
    rest = await taken(queue, 64, WORKER)
    assert sorted(first + rest) == sorted(left + more), "it is the warm one now"


async def test_a_job_with_a_deadline_does_not_wait_for_its_warm_worker(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG, prefixes("x"))
    assert await taken(queue, 4, WORKER) == []
    job = await submit(queue, prefixes=LONG, queue_deadline_s=30.0)
    assert ids(control, queue) == [job.id]
    await submit(queue, prefixes=prefixes("x"))
    due = await submit(queue, prefixes=prefixes("x"), deadline_s=30.0)
    assert await taken(queue, 4, WORKER) == [due.id]


async def test_a_warm_worker_takes_no_job_past_those_that_wait(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    """Its free slot may be advertised before it has claimed what waits."""
    await warm(queue, WORKER, LONG)
    first = await submit(queue, tenant="a")
    store.zadd(keys.advertised(0, POOL), {advertiser(WORKER, LEASE_S): 1})
    second = await submit(queue, prefixes=LONG, tenant="b")
    assert control.assigned(queue) == []
    assert store.llen(keys.own_wake_ups(0, WORKER)) == 1
    assert sorted(await taken(queue, 4, WORKER)) == sorted([first.id, second.id])


async def test_a_worker_that_is_full_when_a_left_job_may_be_taken_wakes_another(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    queue.placement = PlacementRules(patience_s=0.3)
    await warm(queue, OTHER, LONG)
    await submit(queue, prefixes=LONG)
    async with opened(queue) as consumer, asyncio.timeout(DEADLINE_S):
        assert await consumer.claim(4) == []
        assert store.llen(keys.wake_ups(0, POOL)) == 0
        await consumer.wait_for_wake_up()
        await consumer.forward_wake_up()
        assert store.lrange(keys.wake_ups(0, POOL), 0, -1) == [b"1"]


async def test_a_claim_after_a_hand_back_leaves_no_job(
    queue: JobQueue, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    job = await submit(queue, prefixes=LONG)
    async with opened(queue) as consumer:
        assert await consumer.claim(1) == []
        assert [each.id for each in await consumer.claim(1, first=0)] == [job.id]


async def test_hashes_of_more_depths_than_are_known_are_read(queue: JobQueue) -> None:
    """A later release may have them."""
    await warm(queue, WORKER, prefixes("x", 6))
    job = await submit(queue, prefixes=prefixes("x", 6))
    assert await taken(queue, 4, WORKER) == [job.id]


async def test_a_claim_takes_the_job_for_which_its_worker_is_warm(queue: JobQueue) -> None:
    queue.placement = PlacementRules(patience_s=0.0)
    await warm(queue, WORKER, LONG)
    await warm(queue, OTHER, prefixes("x"))
    await claim(queue, 0, OTHER)
    jobs = [await submit(queue, prefixes=each) for each in (b"", prefixes("x"), LONG[:8], LONG)]
    leased = [(await claim(queue, 1))[0] for _ in jobs]
    assert [job.id for job in leased] == [jobs[n].id for n in (3, 2, 0, 1)], (
        "the most blocks, then as they came"
    )
    assert [job.known_blocks for job in leased] == [128, 2, None, 0]


async def test_a_job_overtakes_none_that_came_much_earlier(queue: JobQueue, store: Redis) -> None:
    queue.placement = PlacementRules(patience_s=0.0, overtake_s=5.0)
    await warm(queue, WORKER, LONG)
    old, warm_one, last = [await submit(queue, prefixes=each) for each in (b"", LONG, LONG)]
    waiting = keys.waiting_of(0, POOL, "default", old.tenant)
    store.zincrby(waiting, -5e6, old.id)
    store.zincrby(waiting, -1e6, warm_one.id)
    packed = store.hget(PREFIXES, warm_one.id)
    assert isinstance(packed, bytes)
    store.hset(PREFIXES, warm_one.id, b"%016d%s" % (int(packed[:16]) - 1_000_000, packed[16:]))
    order = [*await taken(queue, 1, WORKER), *await taken(queue, 1, WORKER)]
    assert order == [warm_one.id, old.id]
    assert await taken(queue, 1, WORKER) == [last.id]


async def test_what_is_left_to_no_warm_worker_is_taken_as_it_came(queue: JobQueue) -> None:
    """A job whose warm worker is full waits for it no longer than its patience."""
    queue.placement = PlacementRules(patience_s=0.0)
    await warm(queue, OTHER, LONG)
    jobs = [await submit(queue, prefixes=each) for each in (LONG, SHORT, b"")]
    order = [await taken(queue, 1, WORKER) for _ in jobs]
    assert order == [[each.id] for each in jobs]


async def test_a_claim_looks_at_the_first_jobs_only(queue: JobQueue) -> None:
    queue.placement = PlacementRules(patience_s=0.0, window=3)
    await warm(queue, WORKER, LONG)
    jobs = [await submit(queue, prefixes=each) for each in (b"", b"", b"", LONG)]
    order = [await taken(queue, 1, WORKER) for _ in jobs]
    assert order == [[jobs[n].id] for n in (0, 3, 1, 2)]


async def test_the_turn_of_a_tenant_goes_before_a_prefix(queue: JobQueue) -> None:
    await warm(queue, WORKER, LONG)
    for tenant in "ab":
        for _ in range(8):
            await submit(queue, prefixes=LONG if tenant == "b" else b"", tenant=tenant)
    order = [job.tenant for _ in range(8) for job in await claim(queue, 1)]
    assert order.count("a") == order.count("b") == 4


async def test_without_placement_nothing_is_read_or_left(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    queue.placement = PlacementRules(window=0)
    await warm(queue, OTHER, LONG)
    jobs = [await submit(queue, prefixes=each) for each in (b"", LONG)]
    assert await taken(queue, 2, WORKER) == [job.id for job in jobs]


async def test_prefixes_lie_beside_the_queue_as_long_as_their_job_waits(
    queue: JobQueue, store: Redis
) -> None:
    cancelled, expired, leased = [
        await submit(queue, prefixes=LONG, queue_deadline_s=60) for _ in range(3)
    ]
    await submit(queue)
    assert store.hlen(PREFIXES) == 3
    await queue.cancel(cancelled.id, cancelled.tenant)
    pass_deadline(store, expired.id)
    await queue.expire(0)
    assert store.hkeys(PREFIXES) == [leased.id.encode()]
    found = await claim(queue, 2)
    assert store.hlen(PREFIXES) == 0
    back = next(job for job in found if job.id == leased.id)
    await queue.release([back], "handed_back", blame=False, in_turn=True)
    assert store.hkeys(PREFIXES) == [leased.id.encode()]
    await claim_one(queue)
    assert store.hlen(PREFIXES) == 0


async def test_jobs_without_prefixes_leave_no_map(queue: JobQueue, store: Redis) -> None:
    await warm(queue, WORKER, b"")
    assert store.exists(WARM) == 0
    await warm(queue, WORKER, LONG)
    assert store.hlen(WARM) == 4
    assert 0 < store.ttl(WARM) <= placement.KEPT_S


async def test_a_large_request_wakes_its_warm_worker(
    queue: JobQueue, store: Redis, control: ChannelSubscriber, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    async with opened(queue) as first, opened(queue, OTHER) as second:
        assert await first.claim(4, left_over=1) == await second.claim(4, left_over=1) == []
        await taken(queue, 1, OTHER)  # these consumers advertise nothing
        job = await submit(queue, prefixes=LONG, body=LARGE)
        async with asyncio.timeout(DEADLINE_S):
            await second.wait_for_wake_up()
            assert [each.id for each in await second.claim(4, left_over=1)] == [job.id]


async def test_a_warm_worker_that_is_full_now_wakes_another_one(
    queue: JobQueue, store: Redis, other: ChannelSubscriber
) -> None:
    await warm(queue, OTHER, LONG)
    async with opened(queue, OTHER) as consumer:
        assert await consumer.claim(4, left_over=1) == []
        await taken(queue, 1, OTHER)
        await submit(queue, prefixes=LONG, body=LARGE)
        async with asyncio.timeout(DEADLINE_S):
            await consumer.wait_for_wake_up()
            await consumer.forward_wake_up()
        assert store.lrange(keys.wake_ups(0, POOL), 0, -1) == [b"1"]
        own = keys.own_wake_ups(0, OTHER).encode()
        for pool in (POOL.encode(), b"*"):
            await consumer._connection.push_back((own, pool))
        assert store.lrange(keys.wake_ups(0, POOL), 0, -1) == [b"1", b"1"], "`*` is of no pool"


async def test_a_requeued_job_makes_its_next_worker_warm(
    queue: JobQueue, other: ChannelSubscriber, control: ChannelSubscriber
) -> None:
    await submit(queue, prefixes=LONG)
    first = await claim_one(queue)
    await queue.release([first], "drained", blame=False)
    assert (await claim_one(queue, OTHER)).id == first.id
    assert await taken(queue, 2, OTHER) == await taken(queue, 2, WORKER) == []
    job = await submit(queue, prefixes=LONG)
    assert ids(other, queue) == [job.id]


async def test_the_map_has_two_generations_of_bounded_size(
    redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(placement, "MOST_PREFIXES", 6)
    async with open_queue(redis_url) as queue:
        await warm(queue, OTHER, prefixes("a", 4))
        await warm(queue, WORKER, prefixes("b", 4))
        assert store.exists(WARM) == 0
        assert (store.hlen(BEFORE), store.ttl(BEFORE) > 0) == (8, True)
        jobs = [await submit(queue, prefixes=prefixes(each, 4)) for each in "ba"]
        assert await taken(queue, 1, OTHER) == [jobs[1].id], "found in the earlier one"
        assert (store.hlen(WARM), store.hlen(BEFORE)) == (4, 8)


@pytest.mark.parametrize("packed", [b"", b"x", b"x" * 26, b"\xff" * 34, b"0" * 35, b"9" * 42])
async def test_damaged_prefixes_of_a_waiting_job_cost_no_job(
    queue: JobQueue, store: Redis, packed: bytes
) -> None:
    await warm(queue, OTHER, packed[18:])
    jobs = [await submit(queue, prefixes=LONG) for _ in range(3)]
    store.hset(PREFIXES, jobs[1].id, packed)
    assert set(await taken(queue, 4, WORKER)) == {job.id for job in jobs}
    assert store.hlen(PREFIXES) == 0


async def test_a_job_is_left_to_a_warm_worker_with_a_free_slot_which_is_woken(
    queue: JobQueue, store: Redis, other: ChannelSubscriber
) -> None:
    """Two jobs come at once; who is woken for the one may not take the other."""
    await warm(queue, OTHER, LONG)
    assert await taken(queue, 2, OTHER) == []
    large = await submit(queue, prefixes=LONG, body=LARGE)
    plain = await submit(queue, body=LARGE)
    woken = keys.own_wake_ups(0, OTHER)
    assert store.lpop(woken) == POOL.encode()
    assert await taken(queue, 4, WORKER) == [plain.id]
    assert store.lrange(woken, 0, -1) == [POOL.encode()], "it may have had no free slot before"
    assert await taken(queue, 2, OTHER) == [large.id]

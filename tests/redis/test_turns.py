"""Turns: whose job is next where several tenants wait."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest
from redis import Redis

from shared.job.advertised_slots import SlotUpdate
from shared.job.fair_shares import Account, ShareRules
from shared.job.job import NO_SHARE, LeasedJob, NewJob, Share
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.views import places
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    claim,
    claim_one,
    make_job,
    submit,
)

COST = 400.0
HALF_LIFE_S = ShareRules().half_life_s
TURNS = keys.turns(0, POOL, DEFAULT)
LEVELS = f"{keys.base(0)}{keys.LEVELS}:{POOL}:{DEFAULT}"
CLOCK = keys.base(0) + keys.LEVEL_CLOCK


async def queued(queue: JobQueue, count: int, **fields: Any) -> list[NewJob]:
    return [await submit(queue, **fields) for _ in range(count)]


async def charge(queue: JobQueue, tenant: str, cost: float, lane: str = DEFAULT) -> None:
    await queue.renew(0, WORKER, "", LEASE_S, [], {Account(POOL, lane, tenant): cost})


def tenants(jobs: list[LeasedJob]) -> str:
    return "".join(job.tenant for job in jobs)


async def test_a_tenant_with_many_jobs_does_not_keep_others_waiting(queue: JobQueue) -> None:
    await queued(queue, 50, tenant="a")
    late = await queued(queue, 2, tenant="b")
    first, *rest = await claim(queue, 4)
    assert first.tenant == "a", "it waits longest"
    assert [job.id for job in rest if job.tenant == "b"] == [job.id for job in late]


async def test_jobs_of_one_tenant_keep_their_order(queue: JobQueue) -> None:
    jobs = [job for _ in range(20) for t in "ab" for job in await queued(queue, 1, tenant=t)]
    leased = [job for _ in range(20) for job in await claim(queue, 2)]
    for tenant in "ab":
        assert [job.id for job in leased if job.tenant == tenant] == [
            job.id for job in jobs if job.tenant == tenant
        ]


async def test_a_lane_goes_before_a_turn(queue: JobQueue) -> None:
    await charge(queue, "a", 1e6)
    await queued(queue, 1, tenant="b", lane=FLEX)
    await queued(queue, 1, tenant="b")
    await queued(queue, 1, tenant="a", lane=PRIORITY)
    await queued(queue, 1, tenant="a")
    assert tenants(await claim(queue)) == "abab", "the level of `a` is high in one lane only"


async def test_requeued_jobs_go_first_whoever_they_belong_to(queue: JobQueue) -> None:
    await queued(queue, 1, tenant="a")
    (job,) = await claim(queue)
    await queued(queue, 5, tenant="b")
    await queue.release([job], "drained", blame=False)
    await charge(queue, "a", 1e6)
    assert tenants(await claim(queue, 2)) == "ab"


async def test_what_was_served_lately_decides(queue: JobQueue, store: Redis) -> None:
    await charge(queue, "a", 1500.0)
    await queued(queue, 8, tenant="a")
    await queued(queue, 8, tenant="b")
    assert tenants(await claim(queue, 4)).count("b") == 3, "it has been served less"
    await charge(queue, "b", 10_000.0)
    assert tenants(await claim(queue, 4)) == "aaaa"


async def test_how_many_tenants_wait_in_a_lane(queue: JobQueue) -> None:
    (first, *_), (last,) = await queued(queue, 2, tenant="a"), await queued(queue, 1, tenant="b")
    jobs = [job for each in (first, last) if (job := await queue.get(each.id))]
    found = await places(queue, jobs)
    assert [place and (place.position, place.tenants) for place in found] == [(2, 2), (2, 2)]
    await claim(queue, 3)
    assert await places(queue, jobs) == [None, None]


async def test_the_worker_gets_what_was_charged(queue: JobQueue) -> None:
    await queued(queue, 1, tenant="a")
    (alone,) = await claim(queue)
    assert alone.share == Share(DEFAULT, 1.0, 0.0), "the only tenant is not charged in advance"
    await queued(queue, 1, tenant="a")
    await queued(queue, 1, tenant="b", weight=2.5)
    shares = {job.tenant: job.share for job in await claim(queue)}
    assert shares["a"] == Share(DEFAULT, 1.0, COST)
    assert shares["b"] in {Share(DEFAULT, 2.5, 0.0), Share(DEFAULT, 2.5, COST / 2.5)}
    assert NO_SHARE.weight == 1


@pytest.mark.parametrize("weights", [{"a": 1, "b": 2, "c": 4}, {"a": 0.5, "b": 1, "c": 1}])
async def test_shares_follow_the_weights(queue: JobQueue, weights: dict[str, float]) -> None:
    for tenant, weight in weights.items():
        await queued(queue, 300, tenant=tenant, weight=float(weight))
    served: Counter[str] = Counter()
    for _ in range(70):
        served.update(tenants(await claim(queue, 4)))
    total = sum(weights.values())
    for tenant, weight in weights.items():
        assert served[tenant] / 280 == pytest.approx(weight / total, abs=0.02)


async def test_a_turn_ends_with_the_last_job(queue: JobQueue, store: Redis) -> None:
    first, last = await queued(queue, 2, tenant="a")
    await queue.cancel(first.id, "a")
    assert store.zscore(TURNS, "a") is not None
    await queue.cancel(last.id, "a")
    assert not store.exists(TURNS)


async def test_a_tenant_that_comes_back_is_lifted(queue: JobQueue, store: Redis) -> None:
    await queued(queue, 2, tenant="a")
    await charge(queue, "a", 1000.0)
    await queued(queue, 1, tenant="b")
    await queued(queue, 1, tenant="c")
    await claim(queue, 2)
    level = store.zscore(LEVELS, "a")
    await queued(queue, 1, tenant="d")
    assert store.zscore(TURNS, "d") <= level


async def test_what_is_paid_back_counts_at_the_next_claim(queue: JobQueue) -> None:
    """Claims read the lowest scores first, and as few as they need."""
    for n, tenant in enumerate("abcdef"):
        await queued(queue, 3, tenant=tenant)
        await charge(queue, tenant, 10_000.0 + n)
    for _ in "abcdef":
        await claim(queue, 1)
    await charge(queue, "f", -5_000.0)
    assert tenants(await claim(queue, 1)) == "f"


async def test_a_claim_makes_up_for_what_a_level_forgets(queue: JobQueue, store: Redis) -> None:
    """The lower a level, the larger the part of it that is forgotten until the next claim."""
    for tenant in "ab":
        await queued(queue, 3, tenant=tenant)
    store.delete(CLOCK)
    (first,) = await claim(queue, 1)
    level = store.zscore(LEVELS, first.tenant)
    assert level == pytest.approx(COST * (math.e - 1), rel=0.01)
    high = 100 * 1.5 * COST
    await charge(queue, "a", high)
    await charge(queue, "b", 2 * high)
    before = store.zscore(LEVELS, "a")
    (second,) = await claim(queue, 1)
    assert second.tenant == "a"
    assert store.zscore(LEVELS, "a") - before == pytest.approx(COST, rel=0.05)
    assert second.share.charged == COST, "what is corrected as the job ends"


async def test_levels_halve(queue: JobQueue, store: Redis) -> None:
    await charge(queue, "a", 1000.0)
    store.set(CLOCK, int(store.get(CLOCK)) - int(HALF_LIFE_S * 1e6))
    await charge(queue, "b", 1000.0)
    ratio = store.zscore(LEVELS, "b") / store.zscore(LEVELS, "a")
    assert ratio == pytest.approx(2, rel=0.2), "a busy machine may take seconds between the two"


async def test_levels_stay_small_enough_for_a_number(queue: JobQueue, store: Redis) -> None:
    await submit(queue, tenant="a")
    await charge(queue, "a", 1000.0)
    store.zadd(LEVELS, {"b": 2.0**170})
    store.zadd(TURNS, {"b": 2.0**170})
    store.set(CLOCK, int(store.get(CLOCK)) - int(181 * HALF_LIFE_S * 1e6))
    await charge(queue, "c", 7.0)
    assert store.zrange(LEVELS, 0, -1, withscores=True) == [(b"c", 7.0)], "all else is forgotten"
    assert dict(store.zrange(TURNS, 0, -1, withscores=True))[b"b"] == pytest.approx(
        2.0**-11, rel=0.1
    )
    assert (await claim_one(queue)).tenant == "a"


async def test_levels_mean_nothing_without_their_clock(queue: JobQueue, store: Redis) -> None:
    await submit(queue, tenant="a")
    store.zadd(LEVELS, {"a": 1e100})
    store.zadd(TURNS, {"a": 1e100})
    await charge(queue, "b", 5.0)
    assert dict(store.zrange(LEVELS, 0, -1, withscores=True)) == {b"b": 5.0}
    assert store.zscore(TURNS, "a") == 0


async def test_adapter_queues_share_the_levels_of_their_pool(queue: JobQueue, store: Redis) -> None:
    await queued(queue, 1, tenant="a", pool=f"{POOL}+x-1")
    await queued(queue, 1, tenant="b", pool=f"{POOL}+x-1")
    await queue.acquire(0, WORKER, 2, LEASE_S, SlotUpdate(f"{POOL}+x-1", "", 0, 0))
    assert store.zcard(LEVELS) >= 1
    assert not store.exists(f"{keys.base(0)}{keys.LEVELS}:{POOL}+x-1:{DEFAULT}")


async def test_a_claim_after_a_long_pause_scales_the_levels_before_it_uses_them(
    queue: JobQueue, store: Redis
) -> None:
    await charge(queue, "a", 1000.0)
    await charge(queue, "b", 10.0)
    store.decrby(CLOCK, int(1000 * HALF_LIFE_S * 1e6))
    for tenant in "abc":
        await queued(queue, 4, tenant=tenant)
    order = tenants([job for _ in range(6) for job in await claim(queue, 2)])
    assert order.count("c") == 4, "the past is forgotten"
    assert all(0 < level < 1e6 for _, level in store.zrange(LEVELS, 0, -1, withscores=True))


async def test_what_waits_no_more_does_not_make_a_claim_long(queue: JobQueue, store: Redis) -> None:
    """What ended while it waited elsewhere leaves its id behind."""
    stale = {f"job_000{n:024x}": n for n in range(5000)}
    for tenant in "ab":
        store.zadd(keys.waiting_of(0, POOL, DEFAULT, tenant), stale)
        store.zadd(TURNS, {tenant: 0})
    (job,) = await queued(queue, 1, tenant="a")
    store.delete(keys.wake_ups(0, POOL))
    for _ in range(200):
        before = sum(store.zcard(keys.waiting_of(0, POOL, DEFAULT, each)) for each in "ab")
        leased = await claim(queue, 16)
        after = sum(store.zcard(keys.waiting_of(0, POOL, DEFAULT, each)) for each in "ab")
        assert before - after <= 64 * 17
        if leased:
            break
        assert store.llen(keys.wake_ups(0, POOL)) == 1, "another claim goes on"
    assert [each.id for each in leased] == [job.id]


async def test_new_tenants_of_one_call_are_lifted_as_those_of_several(queue: JobQueue) -> None:
    await charge(queue, "a", 1000.0)
    await charge(queue, "c", 50.0)
    jobs = [make_job(tenant=tenant) for tenant in "acba"]
    await queue.submit_all(0, jobs, 100)
    levels = dict(await queue.servers.of(0).zrange(TURNS, 0, -1, withscores=True))
    a, b, c = levels[b"a"], levels[b"b"], levels[b"c"]
    assert (c / a, b / a) == (pytest.approx(0.5, rel=0.01), pytest.approx(0.25, rel=0.01))

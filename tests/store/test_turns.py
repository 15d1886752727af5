"""Turns: whose job is next where several tenants wait; and for whose prompt a worker is warm."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import pytest

from shared.job import placement
from shared.job.fair_shares import EXPECTED_COST, ShareRules
from shared.job.job import NewJob, Share
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.job.placement import HASH_BYTES, PlacementRules
from shared.store.queue import Control, HeldJob
from tests.store.conftest import CLOCK, POOL, Case, Holder, make_job

HALF_LIFE_S = ShareRules().half_life_s


async def queued(case: Case, count: int, **fields: Any) -> list[NewJob]:
    return [await case.submit(**fields) for _ in range(count)]


async def charge(case: Case, cost: float, tenant: str, lane: str = DEFAULT) -> None:
    await case.worker().claim(room=0, charges={(lane, tenant): cost})


def levels(case: Case, word: str = "levels") -> dict[str, float]:
    name = f"{word}:{POOL}" if word == "levels" else f"{word}:{POOL}:{DEFAULT}"
    found = case.server.zrange(case.base + name, 0, -1, withscores=True)
    return {tenant.decode(): level for tenant, level in found}


def tenants(jobs: list[HeldJob]) -> str:
    return "".join(job.tenant for job in jobs)


async def test_a_tenant_with_many_jobs_does_not_keep_others_waiting(case: Case) -> None:
    await queued(case, 50, tenant="a")
    late = await queued(case, 2, tenant="b")
    first, *rest = await case.worker().claim(4)
    assert first.tenant == "a"
    assert [job.id for job in rest if job.tenant == "b"] == [job.id for job in late]


async def test_jobs_of_one_tenant_keep_their_order(case: Case) -> None:
    jobs = [job for _ in range(20) for t in "ab" for job in await queued(case, 1, tenant=t)]
    worker, claimed = case.worker(), []
    for _ in range(20):
        claimed += await worker.claim(2)
    for tenant in "ab":
        assert [job.id for job in claimed if job.tenant == tenant] == [
            job.id for job in jobs if job.tenant == tenant
        ]


async def test_a_lane_goes_before_a_turn(case: Case) -> None:
    await charge(case, 1e6, "a")
    for tenant, lane in (("b", FLEX), ("b", DEFAULT), ("a", PRIORITY), ("a", DEFAULT)):
        await queued(case, 1, tenant=tenant, lane=lane)
    assert tenants(await case.worker().claim()) == "abab"


async def test_what_was_served_lately_decides(case: Case) -> None:
    worker = case.worker()
    await charge(case, 1500.0, "a")
    await queued(case, 8, tenant="a")
    await queued(case, 8, tenant="b")
    assert tenants(await worker.claim(4)).count("b") == 3
    assert tenants(await worker.claim(4, charges={(DEFAULT, "b"): 1e4})) == "aaaa"
    assert tenants(await worker.claim(1, charges={(DEFAULT, "b"): -1e4})) == "b"


async def test_a_worker_gets_what_was_charged(case: Case) -> None:
    await queued(case, 1, tenant="a")
    assert (await case.worker().claim_one()).share == Share(DEFAULT, 1.0, 0.0)  # it was alone
    await queued(case, 1, tenant="a")
    await queued(case, 1, tenant="b", weight=2.5)
    shares = {job.tenant: job.share for job in await case.worker("w-2").claim()}
    assert shares["a"] in {Share(DEFAULT, 1.0, charged) for charged in (0.0, EXPECTED_COST)}
    assert shares["b"] in {Share(DEFAULT, 2.5, charged) for charged in (0.0, EXPECTED_COST / 2.5)}
    assert shares["a"].charged or shares["b"].charged


@pytest.mark.parametrize("weights", [{"a": 1, "b": 2, "c": 4}, {"a": 0.5, "b": 1, "c": 1}])
async def test_shares_follow_the_weights(case: Case, weights: dict[str, float]) -> None:
    for tenant, weight in weights.items():
        await case.submit_all([make_job(tenant=tenant, weight=float(weight)) for _ in range(300)])
    served: Counter[str] = Counter()
    worker = case.worker(room=1000)
    for _ in range(70):
        served.update(tenants(await worker.claim(4)))
    total = sum(weights.values())
    for tenant, weight in weights.items():
        assert served[tenant] / 280 == pytest.approx(weight / total, abs=0.02)


async def test_a_turn_ends_with_the_last_job(case: Case) -> None:
    first, last = await queued(case, 2, tenant="a")
    await case.queue.cancel("a", first.id)
    assert "a" in levels(case, "turns")
    await case.queue.cancel("a", last.id)
    assert levels(case, "turns") == {}


async def test_a_tenant_that_comes_back_is_lifted(case: Case) -> None:
    await charge(case, 1000.0, "a")
    await charge(case, 50.0, "c")
    await case.submit_all([make_job(tenant=tenant) for tenant in "acba"])
    found = levels(case, "turns")
    assert found["c"] / found["a"] == pytest.approx(0.5, rel=0.01)
    assert found["b"] / found["a"] == pytest.approx(0.25, rel=0.01)


async def test_a_claim_makes_up_for_what_a_level_forgets(case: Case) -> None:
    for tenant in "ab":
        await queued(case, 3, tenant=tenant)
    worker = case.worker()
    first = (await worker.claim(1))[0]
    assert levels(case)[first.tenant] == pytest.approx(EXPECTED_COST * (math.e - 1), rel=0.01)
    high = 100 * 1.5 * EXPECTED_COST
    before = high + levels(case)["a"] if first.tenant == "a" else high
    charges = {(DEFAULT, "a"): high, (DEFAULT, "b"): 2 * high}
    second = (await worker.claim(1, charges=charges))[0]
    assert second.tenant == "a"
    assert levels(case)["a"] - before == pytest.approx(EXPECTED_COST, rel=0.05)
    assert second.share.charged == EXPECTED_COST  # what is corrected as the job ends


async def test_levels_halve_and_stay_small_enough_for_a_number(case: Case) -> None:
    await charge(case, 1000.0, "a")
    case.sleep(HALF_LIFE_S)
    await charge(case, 1000.0, "b")
    assert levels(case)["b"] / levels(case)["a"] == pytest.approx(2, rel=0.01)
    await queued(case, 1, tenant="a")
    for _ in range(40):
        case.sleep(10 * HALF_LIFE_S)
        await charge(case, 7.0, "c")
    assert 0 < levels(case)["c"] < 1e60
    assert set(levels(case, "turns")) == {"a"}
    assert tenants(await case.worker().claim()) == "a"


async def test_levels_mean_nothing_without_their_clock(case: Case) -> None:
    await queued(case, 1, tenant="a")
    for name in (f"levels:{POOL}", f"turns:{POOL}:{DEFAULT}"):
        case.server.zadd(case.base + name, {"a": 1e100})
    await charge(case, 5.0, "b")
    assert levels(case) == {"b": 5.0}
    assert levels(case, "turns") == {"a": 0}


async def test_what_waits_no_more_does_not_make_a_claim_long(case: Case) -> None:
    stale = {f"job_000{n:024x}": n for n in range(1000)}
    for tenant in "ab":
        case.server.zadd(f"{case.base}line:{POOL}:{DEFAULT}:{tenant}", stale)
        case.server.zadd(f"{case.base}turns:{POOL}:{DEFAULT}", {tenant: 0})
    (job,) = await queued(case, 1, tenant="a")
    worker, found = case.worker(room=16), list[HeldJob]()
    while not found:
        before = _waiting(case)
        found = await worker.claim()
        assert 0 < before - _waiting(case) <= 300
    assert [each.id for each in found] == [job.id]


def _waiting(case: Case) -> int:
    return sum(case.server.zcard(f"{case.base}line:{POOL}:{DEFAULT}:{tenant}") for tenant in "ab")


# --- placement ---


def prefixes(name: str, depths: int = 2) -> bytes:
    """The hashes of a prompt that shares its prefixes with those of the same name only."""
    return b"".join(f"{name}{depth}".encode().ljust(HASH_BYTES) for depth in range(depths))


SHORT, LONG = prefixes("short", 1), prefixes("long", 4)


async def warm(case: Case, name: str, *all_prefixes: bytes, room: int = 100) -> Holder:
    """A worker that has run prompts with these prefixes."""
    worker = case.worker(name, room=room)
    for each in all_prefixes:
        await case.submit(prefixes=each)
        await worker.end(await worker.claim_one())
    worker.told()
    return worker


async def test_a_claim_takes_the_job_for_which_its_worker_is_warm(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    jobs = [await case.submit(prefixes=each) for each in (b"", prefixes("x"), SHORT, LONG, LONG)]
    order = [(await worker.claim(1))[0] for _ in range(5)]
    assert [job.id for job in order] == [jobs[n].id for n in (3, 4, 0, 1, 2)]
    assert [job.known_blocks for job in order] == [128, 128, None, 0, 0]
    assert not [name for name in case.names() if name.startswith("prefixes")]


async def test_a_job_overtakes_none_that_came_much_earlier(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    old = await case.submit()
    case.sleep(PlacementRules().overtake_s + 1)
    await case.submit(prefixes=LONG)
    assert (await worker.claim(1))[0].id == old.id


async def test_a_claim_looks_at_the_first_jobs_only(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    first, *_ = [await case.submit() for _ in range(PlacementRules().window)]
    await case.submit(prefixes=LONG)
    assert (await worker.claim(1))[0].id == first.id
    assert (await worker.claim(1))[0].known_blocks == 128


async def test_the_turn_of_a_tenant_goes_before_a_prefix(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    await charge(case, 1e6, "a")
    await case.submit(tenant="a", prefixes=LONG)
    await case.submit(tenant="b")
    assert tenants(await worker.claim(1)) == "b"


async def test_a_submitted_job_wakes_the_idle_worker_that_is_warm(case: Case) -> None:
    plain = case.worker("w-1", room=8)
    other = await warm(case, "w-2", SHORT, LONG, room=8)
    await plain.claim()
    await other.claim()
    await case.submit_all([make_job(prefixes=LONG), make_job(prefixes=LONG)])
    assert (plain.told_to(Control.CLAIM), other.told_to(Control.CLAIM)) == (0, 2)
    await case.submit_all([make_job(prefixes=SHORT) for _ in range(8)])
    # A short prefix is not worth many slots.
    assert other.told_to(Control.CLAIM) < 6
    assert plain.told_to(Control.CLAIM) > 0


async def test_a_warm_worker_that_does_not_hear_is_passed_over(case: Case) -> None:
    other = await warm(case, "w-2", LONG)
    plain = case.worker("w-1")
    for worker in (other, plain):
        await worker.claim()
    other.leave_channel()
    await case.submit(prefixes=LONG)
    assert plain.told_to(Control.CLAIM) == 1


async def test_an_idle_warm_worker_gets_its_job_however_much_room_others_have(case: Case) -> None:
    plain = case.worker("w-1", room=256)
    other = await warm(case, "w-2", SHORT, room=8)
    await plain.claim()
    await other.claim()
    await case.submit(prefixes=SHORT)
    assert (plain.told_to(Control.CLAIM), other.told_to(Control.CLAIM)) == (0, 1)


async def test_a_new_job_is_left_to_an_idle_warm_worker_for_a_moment(case: Case) -> None:
    other = await warm(case, "w-2", LONG)
    plain = case.worker("w-1", room=1)
    for worker in (other, plain):
        await worker.claim()
    job = await case.submit(prefixes=LONG)
    behind = await case.submit(tenant="b")
    assert [each.id for each in await plain.claim()] == [behind.id]
    assert other.told_to(Control.CLAIM) == 2  # once more
    late = case.worker("w-3")
    assert await late.claim() == []
    case.sleep(PlacementRules().patience_s)
    assert (await late.claim_one()).id == job.id


async def test_a_new_job_is_not_left_to_a_warm_worker_that_is_full(case: Case) -> None:
    other = await warm(case, "w-2", LONG, room=1)
    await other.claim()
    job = await case.submit(prefixes=LONG)
    assert await case.worker("w-1").claim() == []
    assert await other.claim(room=0) == []
    assert (await case.worker("w-1").claim_one()).id == job.id


async def test_a_requeued_job_makes_its_next_worker_warm(case: Case) -> None:
    one, two = case.worker("w-1"), case.worker("w-2")
    await case.submit(prefixes=LONG)
    held = await one.claim_one()
    await case.queue.give_back([held], "handed_over", "drain")
    case.sleep(PlacementRules().patience_s)
    await two.claim_one()
    await case.submit_all([make_job(), make_job(prefixes=LONG)])
    assert (await two.claim(1))[0].known_blocks == 128


async def test_the_map_of_prefixes_has_two_generations(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    case.load(CLOCK, (f"MOST_PREFIXES = {placement.MOST_PREFIXES}", "MOST_PREFIXES = 8"))
    worker = await warm(case, "w-1", *[prefixes(f"{n:02}", 4) for n in range(5)])
    sizes = [case.server.hlen(f"{case.base}{word}:{POOL}") for word in ("warm", "warm_before")]
    assert sizes == [4, 8]
    await case.submit(prefixes=prefixes("03", 4))
    assert (await worker.claim_one()).known_blocks == 128
    await case.submit(prefixes=prefixes("00", 4))
    assert (await worker.claim_one()).known_blocks == 0


async def test_damaged_prefixes_cost_no_job(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    jobs = [await case.submit(prefixes=LONG) for _ in range(3)]
    for job, damage in zip(jobs, (b"", b"x" * 7, b"x" * 999), strict=True):
        case.server.hset(f"{case.base}prefixes:{POOL}", job.id, damage)
    assert len(await worker.claim()) == 3

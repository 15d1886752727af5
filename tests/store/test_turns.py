"""Turns: whose job is next where several tenants wait (api/test_fair_turns.py shows the shares that
come of it); and for whose prompt a worker is warm."""

from __future__ import annotations

import math
from typing import Any

import pytest

from shared.job import rules
from shared.job.job import Share
from shared.job.rules import (
    DEFAULT,
    EXPECTED_COST,
    HASH_BYTES,
    PRIORITY,
    PlacementRules,
    ShareRules,
)
from shared.store.queue import Control, HeldJob
from tests.store.conftest import POOL, Case, Holder, make_job, missed_without

HALF_LIFE_S = ShareRules().half_life_s


async def queued(case: Case, tenants: str, **fields: Any) -> None:
    """A job of each of these tenants, one after the other."""
    for tenant in tenants:
        await case.submit(tenant=tenant, **fields)


async def charge(case: Case, cost: float, tenant: str, worker: Holder | None = None) -> None:
    await (worker or case.worker()).claim(room=0, charges={(DEFAULT, tenant): cost})


def levels(case: Case, word: str = "levels") -> dict[str, float]:
    name = f"{word}:{POOL}" if word == "levels" else f"{word}:{POOL}:{DEFAULT}"
    found = case.server.zrange(case.base + name, 0, -1, withscores=True)
    return {tenant.decode(): level for tenant, level in found}


def tenants(jobs: list[HeldJob]) -> str:
    return "".join(job.tenant for job in jobs)


@missed_without("if other and n > 1 and level > limit then break end", "")
async def test_what_was_served_lately_decides(case: Case) -> None:
    """A lane goes before that; of one tenant at most four jobs come at once."""
    worker = case.worker()
    await charge(case, 1500.0, "a")
    await queued(case, "a" * 8 + "b" * 8)
    assert tenants(await worker.claim(4)).count("b") == 3
    assert tenants(await worker.claim(4, charges={(DEFAULT, "b"): 1e4})) == "aaaa"
    assert tenants(await worker.claim(1, charges={(DEFAULT, "b"): -1e4})) == "b"
    await worker.claim()
    await charge(case, 1e6, "b", worker)
    await queued(case, "b", lane=PRIORITY)
    await queued(case, "bbbaaaaaa")
    assert tenants(await worker.claim(3)) == "baa", "a lane goes before"


@missed_without("return cost\n    end, blocks[id])", "return nil\n    end, blocks[id])")
async def test_a_worker_gets_what_was_charged(case: Case) -> None:
    await queued(case, "a")
    assert (await case.worker().claim_one()).share == Share(DEFAULT, 1.0, 0.0)  # it was alone
    await queued(case, "a")
    await queued(case, "b", weight=2.5)
    shares = {job.tenant: job.share for job in await case.worker("w-2").claim()}
    assert shares["a"] in {Share(DEFAULT, 1.0, charged) for charged in (0.0, EXPECTED_COST)}
    assert shares["b"] in {Share(DEFAULT, 2.5, charged) for charged in (0.0, EXPECTED_COST / 2.5)}
    assert shares["a"].charged or shares["b"].charged


@missed_without(
    "if redis.call('EXISTS', line) == 0 then redis.call('ZREM', key('turns', name)",
    "if false then redis.call('ZREM', key('turns', name)",
)
@missed_without("if lift * lowest > level then", "if false then")
async def test_a_tenant_that_comes_back_is_lifted(case: Case) -> None:
    await charge(case, 1000.0, "a")
    await charge(case, 50.0, "c")
    jobs = [make_job(tenant=tenant) for tenant in "acba"]
    await case.submit_all(jobs)
    found = levels(case, "turns")
    assert found["c"] / found["a"] == pytest.approx(0.5, rel=0.01)
    assert found["b"] / found["a"] == pytest.approx(0.25, rel=0.01)
    for job in jobs[:3]:
        await case.queue.cancel(job.tenant, job.id)
    assert set(levels(case, "turns")) == {"a"}, "a turn ends with the last job"


@missed_without("return expected * jobs * (math.exp(1 / jobs) - 1)", "return expected")
async def test_a_claim_makes_up_for_what_a_level_forgets(case: Case) -> None:
    await queued(case, "aaabbb")
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


@missed_without("if not from or halvings > MOST_HALVINGS then", "if not from then")
@missed_without("scale_levels(from and 2 ^ -halvings or 0)", "scale_levels(1)")
async def test_levels_halve_and_stay_small_enough_for_a_number(case: Case) -> None:
    await charge(case, 1000.0, "a")
    case.sleep(HALF_LIFE_S)
    await charge(case, 1000.0, "b")
    assert levels(case)["b"] / levels(case)["a"] == pytest.approx(2, rel=0.01)
    await queued(case, "a")
    for _ in range(40):
        case.sleep(10 * HALF_LIFE_S)
        await charge(case, 7.0, "c")
    assert 0 < levels(case)["c"] < 1e60
    assert set(levels(case, "turns")) == {"a"}
    for name in (f"levels:{POOL}", f"turns:{POOL}:{DEFAULT}"):
        case.server.zadd(case.base + name, {"a": 1e100})
    case.server.delete(f"{case.base}level_clock")
    await charge(case, 5.0, "b")
    assert levels(case) == {"b": 5.0}, "without their clock they mean nothing"
    assert levels(case, "turns") == {"a": 0}


@missed_without("looks - #entries < MOST and", "true and")
async def test_what_waits_no_more_does_not_make_a_claim_long(case: Case) -> None:
    def waiting() -> int:
        lines = [f"{case.base}line:{POOL}:{DEFAULT}:{tenant}" for tenant in "ab"]
        return sum(map(case.server.zcard, lines))

    stale = {f"job_000{n:024x}": n for n in range(1000)}
    for tenant in "ab":
        case.server.zadd(f"{case.base}line:{POOL}:{DEFAULT}:{tenant}", stale)
        case.server.zadd(f"{case.base}turns:{POOL}:{DEFAULT}", {tenant: 0})
    job = await case.submit(tenant="a")
    worker, found = case.worker(room=16), list[HeldJob]()
    while not found:
        before = waiting()
        found = await worker.claim()
        assert 0 < before - waiting() <= 300
    assert [each.id for each in found] == [job.id]


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


@missed_without("defer('HDEL', key('prefixes', pool), id)\n  end\n  defer", "end\n  defer")
@missed_without("known[n] > known[best] and tonumber", "false and tonumber")
async def test_a_claim_takes_the_job_for_which_its_worker_is_warm(case: Case) -> None:
    worker = await warm(case, "w-1", LONG)
    jobs = [await case.submit(prefixes=each) for each in (b"", prefixes("x"), SHORT, LONG, LONG)]
    order = [(await worker.claim(1))[0] for _ in range(5)]
    assert [job.id for job in order] == [jobs[n].id for n in (3, 4, 0, 1, 2)]
    assert [job.known_blocks for job in order] == [128, 128, None, 0, 0]
    assert not [name for name in case.names() if name.startswith("prefixes")]
    jobs = [await case.submit(prefixes=LONG) for _ in range(3)]
    for job, damage in zip(jobs, (b"", b"x" * 7, b"x" * 999), strict=True):
        case.server.hset(f"{case.base}prefixes:{POOL}", job.id, damage)
    assert len(await worker.claim()) == 3


@missed_without("and tonumber(flat[2 * n]) <= latest)", ")")
@missed_without("math.max(count, window) - 1", "1000")
async def test_a_job_overtakes_few_and_none_that_came_much_earlier(case: Case) -> None:
    """The turn of a tenant goes before."""
    worker = await warm(case, "w-1", LONG)
    old = await case.submit()
    case.sleep(PlacementRules().overtake_s + 1)
    await case.submit(prefixes=LONG)
    assert (await worker.claim(1))[0].id == old.id
    assert (await worker.claim(1))[0].known_blocks == 128
    first, *_ = [await case.submit() for _ in range(PlacementRules().window)]
    await case.submit(prefixes=LONG)
    assert (await worker.claim(1))[0].id == first.id
    assert (await worker.claim(1))[0].known_blocks == 128
    await worker.claim()
    await charge(case, 1e6, "a", worker)
    await case.submit(tenant="a", prefixes=LONG)
    await case.submit(tenant="b")
    assert tenants(await worker.claim(1)) == "b"


@missed_without("or not wake_warm(job.pool, job.prefixes) then", "or true then")
@missed_without("local fewer = math.min(jobs, most - room)", "local fewer = 0")
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


async def test_an_idle_warm_worker_gets_its_job_however_much_room_others_have(case: Case) -> None:
    """Unless it does not hear."""
    plain = case.worker("w-1", room=256)
    other = await warm(case, "w-2", SHORT, room=8)
    await plain.claim()
    await other.claim()
    await case.submit(prefixes=SHORT)
    assert (plain.told_to(Control.CLAIM), other.told_to(Control.CLAIM)) == (0, 1)
    await other.claim()
    other.leave_channel()
    await case.submit(prefixes=SHORT)
    assert plain.told_to(Control.CLAIM) == 1


@missed_without("if created_us <= now_us() - patience_us then return false end", "")
@missed_without("if not other or other == worker then return false end", "do return false end")
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


@missed_without(
    "note_warm(pool, worker, job.prefixes)",
    "if job.claims == 1 then note_warm(pool, worker, job.prefixes) end",
)
@missed_without("if count >= PLACEMENT.MOST_PREFIXES then", "if false then")
async def test_the_map_of_prefixes_has_two_generations(case: Case) -> None:
    """The worker that had a prompt last is warm for it."""
    one, two = case.worker("w-1"), case.worker("w-2")
    await case.submit(prefixes=LONG)
    held = await one.claim_one()
    await case.queue.give_back([held], "handed_over", "drain")
    case.sleep(PlacementRules().patience_s)
    await two.end(await two.claim_one())
    await case.submit_all([make_job(), make_job(prefixes=LONG)])
    assert (await two.claim(1))[0].known_blocks == 128
    maps = [f"{case.base}{word}:{POOL}" for word in ("warm", "warm_before")]
    for n in range(rules.MOST_PREFIXES // 1000 + 1):
        case.server.hset(maps[0], mapping={f"{n}-{i}": "w-9" for i in range(1000)})
    await case.submit(prefixes=prefixes("new", 4))
    await two.claim()
    assert case.server.hlen(maps[0]) == 0 < case.server.hlen(maps[1])
    await case.submit(prefixes=LONG)
    assert (await two.claim(1))[0].known_blocks == 128

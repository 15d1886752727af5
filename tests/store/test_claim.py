"""Claims: which jobs a worker gets, and what it gets of them. The model (test_model.py) shows that
none is given twice, and what a worker does that has missed a reply."""

from __future__ import annotations

from collections import Counter

import pytest

from shared.job.job import Origin
from shared.job.rules import DEFAULT, PRIORITY
from shared.store.queue import Control
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, make_job, missed_without


@missed_without("if job.watched == '1' then tell(job.watchers, marker) end", "")
async def test_a_claimed_job_has_what_its_worker_needs(case: Case) -> None:
    """Its followers get a frame of the claim."""
    gateway, origin = case.gateway(), Origin("00-trace", "request-7")
    job = await case.submit(
        stream=False, body=b"\x00\xff", run_deadline_s=5.0, origin=origin, weight=2.0
    )
    await case.submit(pool="another")
    await case.queue.watch(job.id, "gw-2", follow=True)
    case.sleep(2)
    held = await case.worker().claim_one()
    assert (held.id, held.shard, held.number, held.attempt) == (job.id, 0, 1, 1)
    assert (held.stream, held.endpoint, held.body) == (False, job.endpoint, b"\x00\xff")
    assert (held.watchers, held.watched) == (f"{GATEWAY} gw-2", True)
    assert (held.tenant, held.origin, held.stays) == (TENANT, origin, True)
    assert (held.share.lane, held.share.weight, held.share.charged) == (DEFAULT, 2.0, 0.0)
    assert held.waited_s == pytest.approx(2, abs=0.001)
    (entry,) = await case.log(job)
    assert (entry.event, entry.details) == ("claimed", (b"w-1",))
    assert entry.position == (held.generation, 1)
    attempts = [(each.worker, each.outcome) for each in (await case.shown(job)).attempts]
    assert attempts == [("w-1", "in_progress")]
    assert gateway.frames() == [(job.id, 1, "claimed")]


@missed_without("and cost / (PART - 1) or -cost)", "and -cost or -cost)")
@missed_without("local stays = (is_lower or", "local stays = (")
async def test_lower_lanes_get_an_eighth_of_what_is_served_not_of_the_jobs(case: Case) -> None:
    for lane in (DEFAULT, PRIORITY):
        await case.submit_all([make_job(lane=lane) for _ in range(150)])
    worker, served = case.worker(room=1000), Counter[str]()
    costs, charges = {PRIORITY: 4000.0, DEFAULT: 400.0}, dict[tuple[str, str], float]()
    for _ in range(100):
        claimed = await worker.claim(1, charges=charges)
        charges = {}
        for job in claimed:
            lane = job.share.lane
            served[lane] += costs[lane]
            charges[lane, TENANT] = costs[lane] - job.share.charged
            # What has its turn although better ones wait makes no room for them.
            assert job.stays == (lane == DEFAULT)
    assert 0.09 < served[DEFAULT] / served.total() < 0.16


@missed_without(
    "if job.deadline_us ~= '' and tonumber(job.deadline_us) <= now_us() then", "if false then"
)
async def test_what_waits_no_more_is_cleared(case: Case) -> None:
    cancelled, expired, deleted, job = [await case.submit(deadline_s=n) for n in (9, 1, 9, 9)]
    await case.queue.cancel(TENANT, cancelled.id)
    case.server.delete(f"{case.base}job:{deleted.id}")
    case.sleep(2)
    worker = case.worker()
    assert [held.id for held in await worker.claim()] == [job.id]
    assert await case.state(expired) == "expired"
    await worker.end(worker.jobs[job.id])
    assert not [key for key in case.names() if key.startswith(("line", "turns", "waiting"))]


@missed_without("if not values[1] and not values[2] then return nil end", "assert(values[1])")
async def test_a_vanished_job_or_group_stops_no_other(case: Case) -> None:
    jobs = [await case.submit() for _ in range(300)]
    case.server.delete(*[f"{case.base}job:{job.id}" for job in jobs[:250]])
    worker = case.worker(room=5)
    found = await worker.claim() or await worker.claim()
    assert [held.id for held in found] == [job.id for job in jobs[250:255]]
    case.server.xgroup_destroy(f"{case.base}queue:{POOL}", "workers")
    assert len(await case.worker("w-2", room=5).claim()) == 5


@missed_without("if room == 0 and #waiting > 0 then woken[pool] = 1 end", "")
async def test_a_worker_without_room_is_not_idle_and_passes_a_wake_on(case: Case) -> None:
    one, two = case.worker("w-1", room=1), case.worker("w-2", room=1)
    await one.claim()
    await two.claim()
    await case.submit()
    told, other = (one, two) if one.told_to(Control.CLAIM) else (two, one)
    assert await told.claim(room=0) == []
    assert other.told_to(Control.CLAIM) == 1
    assert case.server.zscore(f"{case.base}idle:{POOL}", told.name) is None
    assert len(await other.claim()) == 1

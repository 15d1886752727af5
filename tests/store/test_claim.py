"""Claims: which jobs a worker gets, and what it gets of them."""

from __future__ import annotations

from collections import Counter

import pytest

from shared.job.job import Origin
from shared.job.lanes import DEFAULT, FLEX, PRIORITY
from shared.store.queue import Control
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, make_job, missed_without


async def test_a_claimed_job_has_what_its_worker_needs(case: Case) -> None:
    origin = Origin("00-trace", "request-7")
    job = await case.submit(
        stream=False, body=b"\x00\xff", run_deadline_s=5.0, origin=origin, weight=2.0
    )
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
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert [(a.worker, a.outcome) for a in found.attempts] == [("w-1", "in_progress")]


async def test_no_job_is_given_twice_and_none_of_another_pool(case: Case) -> None:
    jobs = [await case.submit() for _ in range(7)]
    await case.submit(pool="another")
    one, two = case.worker("w-1"), case.worker("w-2")
    assert await one.claim(0) == []
    claimed = [*await one.claim(3), *await two.claim(100)]
    assert [held.id for held in claimed] == [job.id for job in jobs]
    assert await one.claim() == []


async def test_a_better_lane_goes_first_and_lower_ones_get_an_eighth(case: Case) -> None:
    for lane in (FLEX, DEFAULT, PRIORITY):
        await case.submit_all([make_job(lane=lane) for _ in range(60)])
    worker = case.worker(room=1000)
    claimed = [job for _ in range(6) for job in await worker.claim(10)]
    lanes = Counter(job.share.lane for job in claimed)
    assert lanes[PRIORITY] in (52, 53)
    assert min(lanes[DEFAULT], lanes[FLEX]) >= 3
    assert {job.share.lane for job in claimed[:4]} == {PRIORITY}
    # What has its turn although better ones wait makes no room for them.
    assert [job.share.lane != PRIORITY for job in claimed] == [job.stays for job in claimed]
    rest = Counter(job.share.lane for job in await worker.claim())
    assert lanes + rest == dict.fromkeys((PRIORITY, DEFAULT, FLEX), 60)


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


@missed_without("if count_held(worker) > tonumber(ARGV[4]) then return nil end", "")
async def test_a_worker_that_missed_a_reply_reconciles(case: Case) -> None:
    first = await case.submit()
    worker = case.worker()
    held = await worker.claim_one()
    lost = await case.submit()
    await case.queue.claim(0, POOL, worker.name, room=9, known=1, most=9)  # no reply came
    assert await case.queue.claim(0, POOL, worker.name, room=9, known=1, most=9) is None
    assert await case.queue.reconcile(0, worker.name, [first.id]) == {lost.id: "queued"}
    assert not (await worker.write(held)).refused
    assert [job.id for job in await worker.claim()] == [lost.id]
    assert await case.events(lost) == ["claimed", "handed_over", "claimed"]
    # Also when it has jobs that Redis does not know of.
    assert await case.queue.reconcile(0, worker.name, [first.id, lost.id, make_job().id]) == {}
    assert await worker.claim() == []


@missed_without("if room == 0 and #waiting > 0 then woken[pool] = 1 end", "")
async def test_a_worker_without_room_is_not_idle_and_passes_a_wake_on(case: Case) -> None:
    one, two = case.worker("w-1", room=1), case.worker("w-2", room=1)
    await one.claim()
    await two.claim()
    await case.submit()
    told = one if one.told_to(Control.CLAIM) else two
    other = two if told is one else one
    assert await told.claim(room=0) == []
    assert other.told_to(Control.CLAIM) == 1
    assert case.server.zscore(f"{case.base}idle:{POOL}", told.name) is None
    assert len(await other.claim()) == 1


async def test_only_followers_are_told_of_the_claim_at_once(case: Case) -> None:
    gateway = case.gateway()
    followed, plain = await case.submit(stream=False), await case.submit()
    await case.queue.watch(followed.id, GATEWAY, follow=True)
    await case.worker().claim()
    assert gateway.frames() == [(followed.id, 1, "claimed")]
    assert await case.queue.positions(0, [plain.id]) == [(await case.log(plain))[0].position]


async def test_every_claim_is_a_generation_of_its_own(case: Case) -> None:
    job, worker, generations = await case.submit(), case.worker(), []
    for _ in range(3):
        held = await worker.claim_one()
        generations.append(held.generation)
        case.sleep(-60)  # also when the clock goes back
        await case.queue.give_back([held], "handed_over", "drain")
        del worker.jobs[job.id]
    assert generations == sorted(set(generations))
    log = await case.log(job)
    assert [entry.position.number for entry in log] == [1, 2, 3, 4, 5, 6]
    assert sorted(log) == log


async def test_a_log_that_lacks_entries_is_not_continued(case: Case) -> None:
    jobs, worker = [await case.submit() for _ in range(2)], case.worker()
    held = await worker.claim()
    await worker.write(*held)
    await worker.write(*held)
    await case.queue.give_back(held, "handed_over", "drain")
    case.server.delete(f"{case.base}log:{jobs[0].id}")
    middle = (await case.log(jobs[1]))[1].position
    case.server.xdel(f"{case.base}log:{jobs[1].id}", str(middle))
    worker.jobs.clear()
    assert await worker.claim() == []
    for job in jobs:
        assert case.record(job.id)["error_code"] == "log_lost"

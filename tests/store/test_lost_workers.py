"""Jobs of workers that are lost, or give them back: who is lost, and where the jobs go."""

from __future__ import annotations

import pytest

from shared.job.rules import FLEX
from shared.store import keys
from shared.store.queue import Control, Step
from tests.store.conftest import BEGIN_US, POOL, Case, beat, make_job, missed_without


async def lease_ends(case: Case) -> dict[str, str]:
    return await beat(case, seconds=2.5)


# --- where the jobs go ---


@missed_without("(has_progress or event == 'handed_over')", "event == 'handed_over'")
@missed_without("redis.call('ZREM', key('idle', pool), worker)\n    redis.call", "redis.call")
async def test_a_lost_workers_job_is_continued_before_all_turns(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    job = await case.submit(lane=FLEX)
    await worker.write(await worker.claim_one())
    others = [await case.submit(tenant="other") for _ in range(3)]
    assert await lease_ends(case) == {job.id: "queued"}
    assert case.place(job) == "first"
    assert gateway.frames()[-1] == (job.id, 3, "requeued")
    assert case.server.zcard(f"{case.base}idle:{POOL}") == 0
    new = case.worker("w-2")
    held = await new.claim()
    assert [each.id for each in held] == [job.id, *[other.id for other in others]]
    assert (held[0].number, held[0].attempt) == (4, 2)
    await new.end(held[0], "y")
    assert await case.events(job) == ["claimed", "x", "requeued", "claimed", "y", "completed"]


@missed_without("(has_progress or event == 'handed_over')", "true")
@missed_without("job.attempts = has_progress and 0 or job.attempts", "job.attempts = job.attempts")
async def test_three_lost_attempts_in_a_row_end_a_job(case: Case) -> None:
    job, states = await case.submit(max_attempts=3), list[str]()
    for n in range(5):
        worker = case.worker(f"w-{n}")
        held = await worker.claim_one()
        if n == 1:
            await worker.write(held)  # progress begins the count anew
        states += (await lease_ends(case)).values()
        if n < 4:
            assert case.place(job) == ("first" if n == 1 else "line")
    assert states == ["queued"] * 4 + ["failed"]
    assert case.record(job.id)["error_code"] == "too_many_attempts"
    found = await case.shown(job)
    assert [attempt.outcome for attempt in found.attempts] == ["worker_lost"] * 5
    assert case.server.get(f"{case.base}given_up") == b"1"


@missed_without("math.max(job.best, number - 1 - job.start)", "0")
async def test_an_answer_that_begins_anew_makes_progress_beyond_what_it_had(case: Case) -> None:
    job, states = await case.submit(stream=False, max_attempts=3), list[str]()
    for n in range(4):
        worker = case.worker(f"w-{n}")
        held = await worker.claim_one()
        if n:
            await worker.restart(held)
        for _ in range(3):
            await worker.write(held)
        states += (await lease_ends(case)).values()
    assert states == ["queued"] * 3 + ["failed"]
    assert case.record(job.id)["error_code"] == "too_many_attempts"


@missed_without(
    "wake_for(job.pool, job.lane)\n  return job.state",
    "return job.state",
    why="drained",
    place="first",
)
@missed_without("why ~= 'handed_back' and (has", "(has", why="handed_back", place="line")
@pytest.mark.parametrize(("why", "place"), [("drained", "first"), ("handed_back", "line")])
async def test_a_hand_over_keeps_the_place_wakes_and_is_not_the_jobs_fault(
    case: Case, why: str, place: str
) -> None:
    first = await case.submit(max_attempts=1)
    worker, idle = case.worker(), case.worker("w-2")
    held = await worker.claim_one()
    await worker.write(held)
    await idle.claim()
    assert await case.queue.give_back([held], "handed_over", why) == {first.id: "queued"}
    assert await case.queue.give_back([held], "handed_over", why) == {}
    assert idle.told_to(Control.CLAIM) == 1
    assert case.place(first) == place
    later = await case.submit()
    assert [job.id for job in await idle.claim()] == [first.id, later.id]


@missed_without("is_stuck = blame * most_blame > 1", "is_stuck = false")
async def test_a_worker_gets_one_job_at_a_time_that_was_lost_twice_without_progress(
    case: Case,
) -> None:
    worker, jobs = case.worker(), [await case.submit() for _ in range(3)]
    for _ in range(2):
        held = await worker.claim()
        assert [each.id for each in held] == [job.id for job in jobs]
        assert await case.queue.give_back(held, "requeued", "engine_died")
        worker.jobs.clear()
    fresh = await case.submit()
    (first,) = await worker.claim()
    assert (first.id, first.blame) == (jobs[0].id, 2)
    assert await worker.claim(blame=1) == []  # the others stay in front
    await worker.write(first)
    (second,) = await worker.claim()
    assert second.id == jobs[1].id
    others = await case.worker("w-2").claim()
    assert [job.id for job in others] == [jobs[2].id, fresh.id]


# --- who is lost ---


@missed_without("and PATIENCE_US or UNHEARD_US", "and PATIENCE_US or PATIENCE_US")
async def test_a_worker_without_a_connection_loses_its_jobs_soon(case: Case) -> None:
    job = await case.submit()
    dead, *others = [case.worker(f"w-{n}", heard=n > 0) for n in range(3)]
    held = await dead.claim_one()
    for worker in others:
        await worker.claim()
    assert await beat(case, dead, *others, seconds=0.1) == {}
    assert await beat(case, dead, *others, seconds=0.1) == {job.id: "queued"}
    assert (await dead.write(held)).refused == {job.id: "queued"}


@missed_without(
    "(is_patient or 2 * at_once > #workers) and PATIENCE_US or UNHEARD_US", "UNHEARD_US"
)
async def test_workers_that_connect_again_after_all_lost_their_connection_keep_jobs(
    case: Case,
) -> None:
    await case.submit_all([make_job() for _ in range(4)])
    workers = [case.worker(f"w-{n}", room=1, heard=False) for n in range(4)]
    for worker in workers:
        await worker.claim_one()
    assert await beat(case, *workers, seconds=1.5) == {}
    connected = [case.worker(worker.name) for worker in workers]
    assert await beat(case, *connected, seconds=1) == {}


@missed_without(
    "(counts[span - 1] or 0) + (counts[span] or 0) + (counts[span + 1] or 0)", "#workers"
)
async def test_connections_that_ended_one_after_the_other_have_no_patience(case: Case) -> None:
    await case.submit_all([make_job() for _ in range(3)])
    case.server.set(f"{case.base}patient", BEGIN_US + 1_200_000)  # so none is lost before
    workers = [case.worker("w-0", room=1), case.worker("w-1", room=1, heard=False)]
    for worker in workers:
        await worker.claim_one()
    assert await beat(case, *workers, seconds=1) == {}
    workers.append(case.worker("w-2", room=1, heard=False))
    await workers[2].claim_one()
    assert len(await beat(case, *workers, seconds=0.6)) == 2


@missed_without("if lease_end > now + lease_us(worker) then beat(worker) end", "")
@missed_without("if paused <= PAUSE_US then return end", "do return end")
async def test_a_pause_of_redis_ends_no_lease_and_counts_once(case: Case) -> None:
    await case.submit()
    worker = case.worker()
    await worker.claim_one()
    assert (await case.queue.tick(0)).taken == {}
    case.sleep(10)
    assert (await case.queue.tick(0)).taken == {}
    case.sleep(0.5)
    await case.queue.heartbeat(0, worker.name)
    assert await beat(case, worker, seconds=3) == {}
    case.sleep(10)
    await worker.claim()  # before the first tick
    await case.queue.tick(0)
    ((_, lease_end),) = case.server.zrange(f"{case.base}workers", 0, -1, withscores=True)
    assert lease_end <= int(case.server.get(case.base + "clock")) + 2e6


@missed_without("local MOST = 200", "local MOST = 100000")
async def test_a_large_loss_is_taken_in_parts(case: Case) -> None:
    await case.submit_all([make_job() for _ in range(450)])
    await case.worker(room=1000).claim()
    case.sleep(2.1)
    found = [await case.queue.tick(0) for _ in range(4)]
    assert [(each.more, len(each.taken)) for each in found] == [
        (True, 200), (True, 200), (False, 50), (False, 0),
    ]  # fmt: skip
    assert case.server.xinfo_consumers(f"{case.base}queue:{POOL}", "workers") == []


# --- what Redis has lost ---


@missed_without("elseif not is_in_line(id, job) then", "elseif false then")
@missed_without("if not (holds(job) and", "if not (true and")
async def test_jobs_that_are_in_no_list_are_found(case: Case) -> None:
    """Four jobs of which a script that failed halfway has forgotten three."""
    await case.submit_all([make_job() for _ in range(4)])
    worker = case.worker()
    held = await worker.claim(2)
    await worker.write(*held)
    entry = case.record(held[0].id)["entry"]
    case.server.xack(f"{case.base}queue:{POOL}", "workers", entry)
    case.server.delete(f"{case.base}turns:{POOL}:default")
    ended = case.server.xadd(f"{case.base}queue:{POOL}", {"job": make_job().id})
    assert dict((await case.queue.tick(0)).taken) == {held[0].id: "queued"}
    assert len(await case.worker("w-2").claim()) == 3
    assert case.server.xrange(f"{case.base}queue:{POOL}", ended, ended) == []
    assert (await case.queue.tick(0)).taken == {}
    assert not (await worker.send(Step())).refused


@pytest.mark.parametrize("lost", ["all", "an entry"])
@pytest.mark.parametrize("seen", [True, False])
@missed_without(
    "if is_seen(job) then return take(id, job, 'failed', 'log_lost') end", "", seen=True, lost="all"
)
@missed_without(
    "return generation == job.generation and number == length end",
    "return generation == job.generation end",
    seen=True,
    lost="an entry",
)
async def test_a_log_that_lacks_entries_is_not_continued(case: Case, seen: bool, lost: str) -> None:
    """An answer that no client has seen begins anew."""
    worker, job = case.worker(), await case.submit(stream=seen)
    held = await worker.claim_one()
    for _ in range(2):
        await worker.write(held)
    assert await case.queue.give_back([held], "handed_over", "drained")
    worker.jobs.clear()
    if lost == "all":
        case.server.delete(keys.log(0, job.id))
    else:
        case.server.xdel(keys.log(0, job.id), str((await case.log(job))[1].position))
    claimed = await worker.claim()
    if seen:
        assert claimed == []
        assert case.record(job.id)["error_code"] == "log_lost"
        return
    (again,) = claimed
    assert (again.number, again.generation > held.generation) == (1, True)
    assert not (await worker.end(again)).refused
    assert await case.events(job) == ["claimed", "completed"]

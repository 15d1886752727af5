"""Jobs that are taken away: cancels, deadlines, lost workers, hand-overs; followers."""

from __future__ import annotations

import pytest

from shared.job.lanes import FLEX
from shared.job.states import JobState
from shared.store import keys
from shared.store.queue import LOG_LOST, Control, HeldJob, Step, Watched
from shared.store.views import page
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, beat, make_job


async def lose(case: Case) -> dict[str, str]:
    """A worker's lease is over."""
    return await beat(case, seconds=2.5)


async def test_a_cancelled_job_keeps_its_output_and_its_worker_is_told(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    running, waiting = await case.submit(), await case.submit()
    held = (await worker.claim(1))[0]
    await worker.write(held)
    unknown = make_job().id
    states = await case.queue.cancel(TENANT, running.id, waiting.id, unknown, "job_0")
    assert states == [JobState.CANCELLED, JobState.CANCELLED, None, None]
    assert await case.queue.cancel(TENANT, running.id) == [JobState.CANCELLED]
    assert worker.lost() == [running.id, held.generation]
    assert await case.events(running) == ["claimed", "x", "cancelled"]
    assert await case.events(waiting) == ["cancelled"]
    assert gateway.frames() == [
        (running.id, 2, "x"), (running.id, 3, "cancelled"), (waiting.id, 1, "cancelled"),
    ]  # fmt: skip
    assert case.record(running.id)["error_code"] == "cancelled"
    assert case.server.xlen(f"{case.base}queue:{POOL}") == 0


async def test_another_tenants_job_is_not_found(case: Case) -> None:
    job = await case.submit()
    assert await case.queue.cancel("other", job.id) == [None]
    assert await case.state(job) == "queued"


async def test_deadlines_before_and_after_the_first_start(case: Case) -> None:
    codes, worker = [], case.worker()
    for fields, started, seconds in (
        ({"queue_deadline_s": 1.0}, False, 2),
        ({"run_deadline_s": 1.0}, True, 2),
        ({"deadline_s": 1.0}, True, 2),
        ({"deadline_s": 1.0, "run_deadline_s": 9.0, "queue_deadline_s": 9.0}, False, 2),
        ({"queue_deadline_s": 1.0}, True, 0),
    ):
        job = await case.submit(**fields)
        if started:
            await worker.claim_one()
        for _ in range(2 * seconds):
            assert (await case.queue.tick(0)).taken.get(job.id) in (None, "expired")
            case.sleep(0.6)
            await case.queue.heartbeat(0, worker.name)
        await case.queue.tick(0)
        codes.append(case.record(job.id).get("error_code"))
        worker.jobs.pop(job.id, None)
    assert codes == [
        "queue_deadline_exceeded", "run_deadline_exceeded", "deadline_exceeded",
        "deadline_exceeded", None,
    ]  # fmt: skip
    assert case.server.zcard(f"{case.base}deadlines") == 0


async def test_a_lost_workers_job_is_continued_before_all_turns(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    job = await case.submit(lane=FLEX)
    await worker.write(await worker.claim_one())
    others = [await case.submit(tenant="other") for _ in range(3)]
    assert await lose(case) == {job.id: "queued"}
    assert case.place(job) == "first"
    assert gateway.frames()[-1] == (job.id, 3, "requeued")
    new = case.worker("w-2")
    held = await new.claim()
    assert [each.id for each in held] == [job.id, *[other.id for other in others]]
    assert (held[0].number, held[0].attempt) == (4, 2)
    await new.end(held[0], "y")
    assert await case.events(job) == ["claimed", "x", "requeued", "claimed", "y", "completed"]


async def test_an_attempt_that_added_nothing_goes_back_to_its_place(case: Case) -> None:
    worker, job = case.worker(), await case.submit()
    await worker.claim_one()
    await lose(case)
    assert case.place(job) == "line"


async def test_three_lost_attempts_in_a_row_end_a_job(case: Case) -> None:
    job, states = await case.submit(max_attempts=3), list[str]()
    for n in range(5):
        worker = case.worker(f"w-{n}")
        held = await worker.claim_one()
        if n == 1:
            await worker.write(held)  # progress begins the count anew
        states += (await lose(case)).values()
    assert states == ["queued"] * 4 + ["failed"]
    assert case.record(job.id)["error_code"] == "too_many_attempts"
    (found,) = await case.queue.get(job.id)
    assert found is not None
    assert [attempt.outcome for attempt in found.attempts] == ["worker_lost"] * 5
    assert case.server.get(f"{case.base}given_up") == b"1"


async def test_an_answer_that_begins_anew_makes_progress_beyond_what_it_had(case: Case) -> None:
    job, states = await case.submit(stream=False, max_attempts=3), list[str]()
    for n in range(4):
        worker = case.worker(f"w-{n}")
        held = await worker.claim_one()
        if n:
            await worker.restart(held)
        for _ in range(3):
            await worker.write(held)
        states += (await lose(case)).values()
    assert states == ["queued"] * 3 + ["failed"]
    assert case.record(job.id)["error_code"] == "too_many_attempts"


async def test_a_hand_over_keeps_the_place_and_is_not_the_jobs_fault(case: Case) -> None:
    first = await case.submit(max_attempts=1)
    worker = case.worker()
    held = await worker.claim_one()
    await worker.write(held)
    later = await case.submit()
    assert await case.queue.give_back([held], "handed_over", "drain") == {first.id: "queued"}
    assert await case.queue.give_back([held], "handed_over", "drain") == {}
    assert case.place(first) == "line"
    worker.jobs.clear()
    assert [job.id for job in await worker.claim()] == [first.id, later.id]


async def test_a_dead_engine_counts_as_a_lost_worker(case: Case) -> None:
    jobs = [await case.submit(max_attempts=1) for _ in range(2)]
    worker = case.worker()
    held = await worker.claim()
    await worker.write(held[0])
    states = await case.queue.give_back(held, "requeued", "engine_died")
    assert states == {jobs[0].id: "queued", jobs[1].id: "failed"}
    assert case.place(jobs[0]) == "first"


async def test_a_taken_job_wakes_an_idle_worker(case: Case) -> None:
    await case.submit()
    worker, idle = case.worker(), case.worker("w-2")
    held = await worker.claim()
    await idle.claim()
    await case.queue.give_back(held, "handed_over", "drain")
    assert idle.told_to(Control.CLAIM) == 1


async def test_a_worker_with_a_heartbeat_and_a_connection_keeps_its_jobs(case: Case) -> None:
    worker = case.worker()
    await case.submit()
    held = await worker.claim_one()
    for _ in range(8):
        case.sleep(0.5)
        await case.queue.heartbeat(0, worker.name)
        assert (await case.queue.tick(0)).taken == {}
    assert not (await worker.write(held)).refused


async def test_a_worker_without_a_connection_loses_its_jobs_soon(case: Case) -> None:
    job = await case.submit()
    dead, *others = [case.worker(f"w-{n}", heard=n > 0) for n in range(3)]
    held = await dead.claim_one()
    for worker in others:
        await worker.claim()
    assert await beat(case, dead, *others, seconds=0.1) == {}
    assert await beat(case, dead, *others, seconds=0.1) == {job.id: "queued"}
    assert (await dead.write(held)).refused == {job.id: "queued"}


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


async def test_a_pause_of_redis_ends_no_lease(case: Case) -> None:
    await case.submit()
    worker = case.worker()
    await worker.claim_one()
    assert (await case.queue.tick(0)).taken == {}
    case.sleep(10)
    assert (await case.queue.tick(0)).taken == {}
    case.sleep(0.5)
    await case.queue.heartbeat(0, worker.name)
    assert await beat(case, worker, seconds=3) == {}


async def test_a_large_loss_is_taken_in_parts(case: Case) -> None:
    await case.submit_all([make_job() for _ in range(450)])
    await case.worker(room=1000).claim()
    case.sleep(2.1)
    found = [await case.queue.tick(0) for _ in range(4)]
    assert [(each.more, len(each.taken)) for each in found] == [
        (True, 200), (True, 200), (False, 50), (False, 0),
    ]  # fmt: skip
    groups = case.server.xinfo_consumers(f"{case.base}queue:{POOL}", "workers")
    assert groups == []


@pytest.mark.parametrize("keep_s", [None, 0.0, 3.0])
async def test_a_job_that_nobody_follows(case: Case, keep_s: float | None) -> None:
    job, worker = await case.submit(keep_s=keep_s), case.worker()
    await worker.claim_one()
    await case.queue.watch(job.id, "gw-11", follow=False)
    await case.queue.unwatch(job.id, "gw-1")
    await case.queue.unwatch(job.id, "gw-1")
    assert await beat(case, worker, seconds=4) == {}
    await case.queue.unwatch(job.id, "gw-11")
    if keep_s:
        await case.queue.watch(job.id, GATEWAY, follow=False)
        assert await beat(case, worker, seconds=4) == {}
        await case.queue.unwatch(job.id, GATEWAY)
        assert await beat(case, worker, seconds=4) == {job.id: "cancelled"}
    elif keep_s is None:
        assert await beat(case, worker, seconds=4) == {}
    assert await case.state(job) == ("in_progress" if keep_s is None else "cancelled")


async def test_what_a_gateway_learns_when_it_watches(case: Case) -> None:
    job, worker = await case.submit(), case.worker()
    assert await case.queue.watch(make_job().id, "gw-2", follow=True) is None
    watched = [await case.queue.watch(job.id, "gw-2", follow=True)]
    held = await worker.claim_one()
    watched.append(await case.queue.watch(job.id, "gw-2", follow=True))
    await case.queue.give_back([held], "handed_over", "drain")
    watched.append(await case.queue.watch(job.id, "gw-2", follow=True))
    await case.queue.cancel(TENANT, job.id)
    watched.append(await case.queue.watch(job.id, "gw-3", follow=True))
    assert watched == [
        Watched(JobState.QUEUED, None, False),
        Watched(JobState.IN_PROGRESS, held.generation, True),
        Watched(JobState.QUEUED, None, True),
        Watched(JobState.CANCELLED, None, True),
    ]
    assert case.record(job.id)["watchers"] == f"{GATEWAY} gw-2"


async def test_positions_tell_a_log_that_is_lost(case: Case) -> None:
    waiting, lost = await case.submit(lane=FLEX), await case.submit()
    await case.worker().claim(1)
    case.server.delete(keys.log(0, lost.id))
    found = await case.queue.positions(0, [waiting.id, lost.id, make_job().id])
    assert found == [(0, 0), LOG_LOST, None]


async def test_which_jobs_have_ended(case: Case) -> None:
    waiting, cancelled, damaged, gone = *[await case.submit() for _ in range(3)], make_job()
    await case.queue.cancel(TENANT, cancelled.id)
    case.server.hset(keys.job(0, damaged.id), "state", b"\xff")
    found = await case.queue.ended(0, [each.id for each in (waiting, cancelled, damaged, gone)])
    assert found == {cancelled.id: "cancelled", damaged.id: "failed", gone.id: "gone"}
    assert await case.queue.ended(0, []) == {}


async def test_ended_jobs_are_deleted_and_others_are_not(case: Case) -> None:
    worker = case.worker()
    jobs = [await case.submit() for _ in range(3)]
    held = await worker.claim(2)
    await worker.end(held[0])
    await case.queue.cancel(TENANT, jobs[2].id)
    await case.queue.delete(*[job.id for job in jobs], make_job().id)
    assert [await case.state(job) for job in jobs] == ["gone", "in_progress", "gone"]
    assert case.server.zrange(f"{case.base}jobs:{TENANT}", 0, -1) == [jobs[1].id.encode()]
    assert await case.log(jobs[0]) == []
    # The tokens of the other one are counted by its log.
    assert 0 < case.server.pttl(keys.log(0, jobs[2].id)) <= 60_000


async def in_no_line(case: Case) -> list[HeldJob]:
    """Four jobs of which a script that failed halfway has forgotten three."""
    await case.submit_all([make_job() for _ in range(4)])
    worker = case.worker()
    held = await worker.claim(2)
    await worker.write(*held)
    entry = case.record(held[0].id)["entry"]
    case.server.xack(f"{case.base}queue:{POOL}", "workers", entry)
    case.server.delete(f"{case.base}turns:{POOL}:default")
    return held


async def test_jobs_that_are_in_no_list_are_found(case: Case) -> None:
    held = await in_no_line(case)
    ended = case.server.xadd(f"{case.base}queue:{POOL}", {"job": make_job().id})
    taken = dict((await case.queue.tick(0)).taken)
    assert taken == {held[0].id: "queued"}
    assert len(await case.worker("w-2").claim()) == 3
    assert case.server.xrange(f"{case.base}queue:{POOL}", ended, ended) == []
    assert (await case.queue.tick(0)).taken == {}
    assert not (await case.queue.emit(0, "w-1", b"", Step()))[0]


DAMAGED = {
    "request": b"\xc1 damaged",
    "state": b"asleep",
    "created_us": b"yesterday",
    "deadline_us": b"soon",
    "entry": b"first",
    "lease": b"\xc1 damaged",
    "history": b"{}x",
    "body": None,
}


def damage(case: Case, job_id: str, field: str) -> None:
    """Change a field of a record as a person might."""
    if (value := DAMAGED[field]) is None:
        case.server.hdel(keys.job(0, job_id), field)
    else:
        case.server.hset(keys.job(0, job_id), field, value)


@pytest.mark.parametrize("field", DAMAGED)
async def test_a_damaged_record_fails_and_stops_nothing(case: Case, field: str) -> None:
    worker = case.worker()
    running = await case.submit()
    held = await worker.claim_one()
    waiting, job = await case.submit(), await case.submit()
    for each in (running, waiting):
        damage(case, each.id, field)
    if field not in ("body", "entry"):
        shown = {job_id: found for _, job_id, found in await page(case.queue, [TENANT], None, 9)}
        for each in (running, waiting):
            found = shown[each.id]
            assert found is not None
            assert (found.state, found.error_code) == ("failed", "record_damaged")
    assert [each.id for each in await worker.claim()] == [job.id]
    assert await case.state(waiting) == "failed"
    await worker.end(held)
    if field != "body":
        assert await case.state(running) == "failed"
        assert case.record(running.id)["error_code"] == "record_damaged"
    for _ in range(3):
        case.sleep(1)
        await case.queue.heartbeat(0, worker.name, 2.0)
        await case.queue.tick(0)
    await case.queue.reconcile(0, worker.name, worker.jobs)
    assert await worker.claim() == []
    assert not (await worker.end(worker.jobs[job.id])).refused
    await case.queue.sweep(0, 100)


@pytest.mark.parametrize("field", ["request", "lease", "state", "history"])
@pytest.mark.parametrize("how", ["watch", "cancel", "give_back", "lose"])
async def test_a_damaged_record_fails_where_it_is_needed(case: Case, how: str, field: str) -> None:
    worker = case.worker()
    await case.submit()
    held = await worker.claim_one()
    damage(case, held.id, field)
    if how == "watch":
        await case.queue.watch(held.id, "gw-2", follow=True)
    elif how == "cancel":
        await case.queue.cancel(TENANT, held.id)
    elif how == "give_back":
        await case.queue.give_back([held], "handed_over", "drain")
    else:
        await lose(case)
    assert case.record(held.id)["error_code"] == "record_damaged"
    assert await case.queue.ended(0, [held.id]) == {held.id: "failed"}
    assert (await case.log(held))[-1].event == "failed"


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


@pytest.mark.parametrize("seen", [True, False])
async def test_an_answer_that_no_client_has_seen_begins_anew_without_its_log(
    case: Case, seen: bool
) -> None:
    worker, job = case.worker(), await case.submit(stream=seen)
    held = await worker.claim_one()
    await worker.write(held)
    assert await case.queue.give_back([held], "handed_over", "drained")
    worker.jobs.clear()
    entries = await case.log(job)
    case.server.xdel(keys.log(0, job.id), str(entries[1].position))
    claimed = await worker.claim()
    if seen:
        assert claimed == []
        assert case.record(job.id)["error_code"] == "log_lost"
        return
    (again,) = claimed
    assert (again.number, again.generation > held.generation) == (1, True)
    assert not (await worker.end(again)).refused
    assert await case.events(job) == ["claimed", "completed"]

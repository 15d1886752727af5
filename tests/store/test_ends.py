"""Ends that no worker reports: cancels, deadlines, jobs that nobody follows, damaged records; and
what gateways learn of jobs."""

from __future__ import annotations

import pytest

from shared.job.rules import FLEX
from shared.job.states import JobState
from shared.store import keys
from shared.store.queue import LOG_LOST, Watched
from shared.store.views import page
from tests.store.conftest import GATEWAY, POOL, TENANT, Case, beat, make_job, missed_without


@missed_without("(ARGV[3] == '' or job.tenant == ARGV[3])", "true")
async def test_a_cancelled_job_keeps_its_output_and_its_worker_is_told(case: Case) -> None:
    gateway, worker = case.gateway(), case.worker()
    running, waiting = await case.submit(), await case.submit()
    held = (await worker.claim(1))[0]
    await worker.write(held)
    assert await case.queue.cancel("other", running.id) == [None]
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


@pytest.mark.parametrize(
    ("deadlines", "started", "code"),
    [
        ({"queue_deadline_s": 1.0}, False, "queue_deadline_exceeded"),
        ({"queue_deadline_s": 1.0}, True, None),
        ({"run_deadline_s": 1.0}, False, None),
        ({"run_deadline_s": 1.0}, True, "run_deadline_exceeded"),
        ({"deadline_s": 1.0}, True, "deadline_exceeded"),
        (
            {"deadline_s": 1.0, "run_deadline_s": 9.0, "queue_deadline_s": 9.0}, False,
            "deadline_exceeded",
        ),
    ],
)  # fmt: skip
@missed_without(
    "if job.claims == 0 and (job.queue_ms ~= '' or job.run_ms ~= '') then",
    "if false then",
    deadlines={"run_deadline_s": 1.0},
    started=True,
    code="run_deadline_exceeded",
)
@missed_without(
    "if job.claims == 0 and is_over(job.queue_ms) then",
    "if false then",
    deadlines={"queue_deadline_s": 1.0},
    started=False,
    code="queue_deadline_exceeded",
)
async def test_deadlines_before_and_after_the_first_start(
    case: Case, deadlines: dict[str, float], started: bool, code: str | None
) -> None:
    job, worker = await case.submit(**deadlines), case.worker()
    if started:
        await worker.claim_one()
    assert await beat(case, worker, seconds=0.8) == {}
    taken = await beat(case, worker, seconds=1)
    assert taken == ({job.id: "expired"} if code else {})
    assert case.record(job.id).get("error_code") == code
    if code or started:
        assert case.server.zcard(f"{case.base}deadlines") == 0


@pytest.mark.parametrize("keep_s", [None, 0.0, 3.0])
@missed_without("if #left == 0 and tonumber(job.keep_ms) == 0 then", "if false then", keep_s=0.0)
async def test_a_job_that_nobody_follows(case: Case, keep_s: float | None) -> None:
    job, worker = await case.submit(keep_s=keep_s), case.worker()
    await worker.claim_one()
    await case.queue.watch(job.id, "gw-11", follow=False)
    for _ in range(2):
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


async def test_which_jobs_have_ended_and_which_logs_are_lost(case: Case) -> None:
    waiting, cancelled, damaged, gone = *[await case.submit() for _ in range(3)], make_job()
    await case.queue.cancel(TENANT, cancelled.id)
    case.server.hset(keys.job(0, damaged.id), "state", b"\xff")
    found = await case.queue.ended(0, [each.id for each in (waiting, cancelled, damaged, gone)])
    assert found == {cancelled.id: "cancelled", damaged.id: "failed", gone.id: "gone"}
    assert await case.queue.ended(0, []) == {}
    flex = await case.submit(lane=FLEX)
    await case.worker().claim(1)
    case.server.delete(keys.log(0, waiting.id))
    positions = await case.queue.positions(0, [flex.id, waiting.id, gone.id])
    assert positions == [(0, 0), LOG_LOST, None]


@missed_without(
    "if not job or not ENDS[job.state] then return 0 end", "if not job then return 0 end"
)
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


# --- damaged records ---

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
@missed_without("if is_damaged then return fail_damaged(id, job) end", "", field="lease")
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
        assert await case.queue.ended(0, [held.id]) == {held.id: "failed"}
        assert (await case.log(held))[-1].event == "failed"
        assert case.record(running.id)["error_code"] == "record_damaged"
    await beat(case, worker, seconds=1)
    await case.queue.reconcile(0, worker.name, worker.jobs)
    assert await worker.claim() == []
    assert not (await worker.end(worker.jobs[job.id])).refused
    await case.queue.sweep(0, 100)

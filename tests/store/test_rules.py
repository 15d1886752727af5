"""Rules that a random schedule seldom needs: each holds, and is missed when the scripts lack it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from shared.store import keys
from tests.harness.servers import RedisServer
from tests.store.conftest import BEGIN_US, POOL, TENANT, Case, beat, make_job, open_case

Rule = Callable[[Case], Awaitable[bool]]


async def an_old_worker_writes_nothing(case: Case) -> bool:
    job, old = await case.submit(), case.worker("w-1")
    before = await old.claim_one()
    await old.write(before, text="a")
    await case.queue.give_back([before], "handed_over", "drain")
    await old.write(before, text="b")
    await case.worker("w-2").claim_one()
    for _ in range(3):
        await old.write(before, text="c")
    return await case.events(job) == ["claimed", "a", "handed_over", "claimed"]


async def a_generation_that_redis_has_lost_is_not_given_again(case: Case) -> bool:
    """Redis comes back without a claim, and another worker gets the job."""
    job = await case.submit()
    names = [name for name in case.server.scan_iter("*") if not name.endswith(b"clock")]
    copy = {name: case.server.dump(name) for name in names}
    first = await case.worker("w-1").claim_one()
    for name in case.server.scan_iter("*"):
        if not name.endswith(b"clock"):
            case.server.delete(name)
    for name, value in copy.items():
        case.server.restore(name, 0, value)
    second = await case.worker("w-2").claim_one()
    return job.id == second.id and second.generation > first.generation


async def interrupted_jobs_come_first(case: Case) -> bool:
    await case.submit_all([make_job(tenant="a") for _ in range(8)])
    worker = case.worker()
    await worker.write(*await worker.claim())
    await case.submit_all([make_job(tenant="b") for _ in range(100)])
    await beat(case, seconds=2.5)
    return {job.tenant for job in await case.worker("w-2").claim(8)} == {"a"}


async def a_lost_log_is_not_continued(case: Case) -> bool:
    job, worker = await case.submit(), case.worker()
    held = await worker.claim_one()
    await worker.write(held)
    await case.queue.give_back([held], "handed_over", "drain")
    case.server.delete(keys.log(0, job.id))
    worker.jobs.clear()
    return not await worker.claim()


async def an_end_tells_of_a_log_that_lacks_entries(case: Case) -> bool:
    job, worker = await case.submit(), case.worker()
    held = await worker.claim_one()
    await worker.write(held)
    case.server.xdel(keys.log(0, job.id), str((await case.log(job))[1].position))
    await worker.end(held)
    return await case.state(job) == "failed"


async def a_lost_reply_to_a_claim_is_noticed(case: Case) -> bool:
    await case.submit()
    await case.queue.claim(0, POOL, "w-1", room=9, known=0, most=9)
    return await case.queue.claim(0, POOL, "w-1", room=9, known=0, most=9) is None


async def no_frame_of_a_refused_entry_is_published(case: Case) -> bool:
    gateway, worker = case.gateway(), case.worker()
    await case.submit_all([make_job(), make_job()])
    held = await worker.claim()
    await case.queue.cancel(TENANT, held[0].id)
    await worker.write(*held)
    return [frame[0] for frame in gateway.frames() if frame[2] == "x"] == [held[1].id]


async def a_job_that_has_expired_is_not_handed_out(case: Case) -> bool:
    await case.submit(deadline_s=1.0)
    case.sleep(1.5)
    return not await case.worker().claim()


async def an_answer_that_always_dies_at_the_same_place_ends(case: Case) -> bool:
    job = await case.submit(stream=False)
    for n in range(5):
        worker = case.worker(f"w-{n}")
        for held in await worker.claim():
            if n:
                await worker.restart(held)
            await worker.write(held)
            await worker.write(held)
        await beat(case, seconds=2.5)
    return case.record(job.id).get("error_code") == "too_many_attempts"


async def one_tick_takes_at_most_200_jobs(case: Case) -> bool:
    await case.submit_all([make_job() for _ in range(300)])
    await case.worker(room=1000).claim()
    case.sleep(2.5)
    return len((await case.queue.tick(0)).taken) == 200


async def a_lost_worker_is_not_idle(case: Case) -> bool:
    await case.worker().claim()
    await beat(case, seconds=2.5)
    return bool(case.server.zcard(f"{case.base}idle:{POOL}") == 0)


async def a_lease_that_lies_ahead_ends(case: Case) -> bool:
    """The clock goes back a minute, and the worker stands still."""
    job = await case.submit()
    await case.worker().claim_one()
    case.sleep(-60)
    await beat(case, seconds=2.5)
    return await case.state(job) == "queued"


async def a_pause_counts_once(case: Case) -> bool:
    """Redis stood still for ten seconds; a worker claims before the first tick."""
    await case.queue.tick(0)
    case.sleep(10)
    await case.worker().claim()
    await case.queue.tick(0)
    (lease_end,) = case.server.zrange(f"{case.base}workers", 0, -1, withscores=True)
    return bool(lease_end[1] <= int(case.server.get(case.base + "clock")) + 2e6)


async def a_pause_ends_no_lease(case: Case) -> bool:
    job, worker = await case.submit(), case.worker()
    await worker.claim_one()
    await case.queue.tick(0)
    case.sleep(10)
    await beat(case, seconds=0.5)
    await beat(case, worker, seconds=0.5)
    return await case.state(job) == "in_progress"


async def connections_that_all_ended_at_once_have_a_while(case: Case) -> bool:
    await case.submit_all([make_job(), make_job()])
    workers = [case.worker(f"w-{n}", room=1, heard=False) for n in range(2)]
    for worker in workers:
        await worker.claim_one()
    return await beat(case, *workers, seconds=1) == {}


async def connections_that_ended_one_after_the_other_have_none(case: Case) -> bool:
    await case.submit_all([make_job() for _ in range(3)])
    case.server.set(f"{case.base}patient", BEGIN_US + 1_200_000)  # so none is lost before
    workers = [case.worker("w-0", room=1), case.worker("w-1", room=1, heard=False)]
    for worker in workers:
        await worker.claim_one()
    assert await beat(case, *workers, seconds=1) == {}
    workers.append(case.worker("w-2", room=1, heard=False))
    await workers[2].claim_one()
    return len(await beat(case, *workers, seconds=0.6)) == 2


async def jobs_in_no_list_are_found(case: Case) -> bool:
    await case.submit()
    case.server.delete(f"{case.base}turns:{POOL}:default")
    await case.queue.tick(0)
    return len(await case.worker().claim()) == 1


async def a_record_that_is_gone_is_skipped(case: Case) -> bool:
    jobs = [await case.submit() for _ in range(2)]
    case.server.delete(keys.job(0, jobs[0].id))
    return [job.id for job in await case.worker().claim()] == [jobs[1].id]


async def a_short_log_takes_little(case: Case) -> bool:
    job, worker = await case.submit(), case.worker()
    held = await worker.claim_one()
    for _ in range(10):
        await worker.write(held)
    await worker.end(held)
    return bool(case.server.memory_usage(keys.log(0, job.id)) < 1600)


async def followers_stay_told_until_they_are_known(case: Case) -> bool:
    """The worker lost its connection together with the reply."""
    job, worker = await case.submit(), case.worker()
    held = await worker.claim_one()
    await case.queue.watch(job.id, "gw-2", follow=True)
    await worker.write(held)
    worker.version = b""
    return job.id in (await worker.write(held)).followers


RULES: list[tuple[Rule, tuple[str, str]]] = [
    (
        an_old_worker_writes_nothing,
        ("job.generation = math.max(now_us(), last + 1)", "job.generation = 1"),
    ),
    (
        a_generation_that_redis_has_lost_is_not_given_again,
        ("job.generation = math.max(now_us(), last + 1)", "job.generation = last + 1"),
    ),
    (
        interrupted_jobs_come_first,
        ("if event == 'requeued' and has_progress then enter_first", "if false then enter_first"),
    ),
    (
        a_lost_log_is_not_continued,
        (
            "if is_seen(job) then return take(id, job, 'failed', 'log_lost') end",
            "",
        ),
    ),
    (
        an_end_tells_of_a_log_that_lacks_entries,
        ("redis.call('XLEN', key('log', id)) ~= number - 1", "false"),
    ),
    (
        a_lost_reply_to_a_claim_is_noticed,
        ("if count_held(worker) > tonumber(ARGV[4]) then return nil end", ""),
    ),
    (
        no_frame_of_a_refused_entry_is_published,
        ("some_refused and without_refused(ARGV[i + 1]) or ARGV[i + 1]", "ARGV[i + 1]"),
    ),
    (
        a_job_that_has_expired_is_not_handed_out,
        ("if job.deadline_us ~= '' and tonumber(job.deadline_us) <= now_us()", "if false"),
    ),
    (
        an_answer_that_always_dies_at_the_same_place_ends,
        ("math.max(job.best, number - 1 - job.start)", "0"),
    ),
    (one_tick_takes_at_most_200_jobs, ("local MOST = 200", "local MOST = 100000")),
    (
        a_lost_worker_is_not_idle,
        ("redis.call('ZREM', key('idle', pool), worker)\n    redis.call", "redis.call"),
    ),
    (
        a_lease_that_lies_ahead_ends,
        ("if lease_end > now + lease_us(worker) then beat(worker) end", ""),
    ),
    (a_pause_counts_once, ("if lease_end > now + lease_us(worker) then beat(worker) end", "")),
    (a_pause_ends_no_lease, ("if paused <= PAUSE_US then return end", "do return end")),
    (
        connections_that_all_ended_at_once_have_a_while,
        ("(is_patient or 2 * at_once > #workers) and PATIENCE_US or UNHEARD_US", "UNHEARD_US"),
    ),
    (
        connections_that_ended_one_after_the_other_have_none,
        ("(counts[span - 1] or 0) + (counts[span] or 0) + (counts[span + 1] or 0)", "#workers"),
    ),
    (jobs_in_no_list_are_found, ("elseif not is_in_line(id, job) then", "elseif false then")),
    (
        a_record_that_is_gone_is_skipped,
        ("if not values[1] and not values[2] then return nil end", "assert(values[1])"),
    ),
    (a_short_log_takes_little, ("if number < NODE_ENTRIES then compact(id) end", "")),
    (
        followers_stay_told_until_they_are_known,
        ("if version ~= '' then redis.call('ZREMRANGEBYSCORE', followed, '-inf', version) end",
         "redis.call('DEL', followed)"),
    ),
]  # fmt: skip
NAMES = [rule.__name__ for rule, _ in RULES]


@pytest.mark.parametrize(("rule", "without"), RULES, ids=NAMES)
async def test_a_rule_holds_and_is_missed(
    own_kind: RedisServer, rule: Rule, without: tuple[str, str]
) -> None:
    async with open_case(own_kind) as case:
        assert await rule(case)
        case.server.flushall()
    async with open_case(own_kind, changes=[without]) as case:
        try:
            holds = await rule(case)
        except Exception:
            holds = False
        assert not holds, f"{rule.__name__} needs no {without[0]!r}"

"""What has ended: each end is one entry, whatever ends a job, and each reader uses it once; the
sums of use that are made of it. `api/test_usage.py` compares the sums with the logs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

import pytest

from gateway.maintenance.usage_counter import UsageCounter
from shared.store import keys
from shared.store.ended import Ended, EndedStreams, Owner, Reader
from shared.store.queue import HeldJob, Queue
from shared.store.usage import OTHER, UsageRecords, UsageSums
from shared.store.webhooks import Deliveries
from shared.webhooks.webhook_delivery import notify_of
from tests.store.conftest import GATEWAY, TENANT, Case, missed_without

KEPT_DAYS = 400
KEY = "key_0123456789abcdef01234567"
OWNER = Owner(TENANT, KEY, "m")


async def ended(case: Case) -> list[Ended]:
    """All that has ended in the first shard."""
    return await EndedStreams(case.queue, Reader.WEBHOOKS).read(0, "", 1000)


async def complete(case: Case, **changes: object) -> HeldJob:
    worker, held = await case.begin(**changes)
    await worker.end(held)
    return held


async def add_up(queue: Queue) -> None:
    await UsageCounter(queue, KEPT_DAYS).run()


async def sums(queue: Queue, tenant: str = "") -> dict[Owner, UsageSums]:
    """Of this month: a test that runs at midnight finds its jobs on two days."""
    today = datetime.now(UTC).date()
    found: dict[Owner, UsageSums] = {}
    async for part in UsageRecords(queue).rows(today.replace(day=1), today, tenant):
        for row in part:
            found[row.owner] = found.get(row.owner, UsageSums()).plus(row.sums)
    return found


# --- each end is one entry ---


async def completes(case: Case) -> str:
    return (await complete(case)).id


async def fails(case: Case) -> str:
    worker, held = await case.begin()
    await worker.end(held, error_code="x")
    return held.id


async def lacks_log_entries(case: Case) -> str:
    worker, held = await case.begin()
    case.server.delete(keys.log(0, held.id))
    await worker.end(held)
    return held.id


async def is_cancelled_as_it_waits(case: Case) -> str:
    job = await case.submit()
    await case.queue.cancel(TENANT, job.id)
    return job.id


async def is_cancelled_as_it_runs(case: Case) -> str:
    _, held = await case.begin()
    for _ in range(2):
        await case.queue.cancel(TENANT, held.id)
    return held.id


async def has_no_watcher(case: Case) -> str:
    job = await case.submit(keep_s=0.0)
    await case.queue.unwatch(job.id, GATEWAY)
    return job.id


async def has_a_deadline(case: Case) -> str:
    job = await case.submit(deadline_s=1.0)
    case.sleep(2)
    await case.queue.tick(0)
    return job.id


async def is_too_late_to_start(case: Case) -> str:
    job = await case.submit(queue_deadline_s=1.0)
    case.sleep(2)
    assert not await case.worker().claim()
    return job.id


async def is_out_of_attempts(case: Case) -> str:
    _, held = await case.begin(max_attempts=1)
    await case.lose()
    return held.id


async def has_a_damaged_record(case: Case) -> str:
    job = await case.submit()
    case.server.hset(keys.job(0, job.id), "created_us", "never")
    await case.queue.cancel(TENANT, job.id)
    return job.id


WAYS: dict[Callable[[Case], Awaitable[str]], str] = {
    completes: "completed",
    fails: "failed",
    lacks_log_entries: "failed",
    is_cancelled_as_it_waits: "cancelled",
    is_cancelled_as_it_runs: "cancelled",
    has_no_watcher: "cancelled",
    has_a_deadline: "expired",
    is_too_late_to_start: "expired",
    is_out_of_attempts: "failed",
    has_a_damaged_record: "failed",
}


async def test_an_end_is_one_entry(case: Case) -> None:
    for number, (way, state) in enumerate(WAYS.items()):
        job_id = await way(case)
        *before, entry = await ended(case)
        assert len(before) == number, way.__name__
        assert entry[1:5] == (job_id, Owner(TENANT, "", "m"), state, ""), way.__name__
        assert abs(entry.at_ms / 1e3 - time.time()) < 60


@missed_without("if entries == 0 or job.start > 0 then wasted", "if true then wasted")
async def test_an_end_has_the_time_and_the_tokens_of_all_attempts(case: Case) -> None:
    """Attempts without output in the answer are wasted; who hands a job over has not ended it."""
    await case.submit(notify=notify_of("job", ["we_1"]), key=KEY, reserved="9")
    worker = case.worker()
    for wait_s, runs_s, writes in ((1, 2, False), (4, 8, True)):
        case.sleep(wait_s)
        held = await worker.claim_one()
        case.sleep(runs_s)
        if writes:
            await worker.write(held)
        await case.queue.give_back([held], "handed_over", "drain")
        worker.jobs.clear()
    assert await ended(case) == []
    held = await worker.claim_one()
    case.sleep(16)
    await worker.end(held, cached_tokens=1)
    (entry,) = await ended(case)
    assert (entry.notify, entry.reserved) == ("job we_1", "9")
    found = UsageSums.of(entry)
    assert [round(us / 1e6) for us in (found.queue_us, found.engine_us, found.wasted_us)] == [
        1, 26, 2,
    ]  # fmt: skip
    assert (found.prompt_tokens, found.cached_tokens, found.output_tokens) == (2, 1, 3)


@missed_without(
    "if (redis.call('HGET', positions, reader) or '') ~= after then return false end", ""
)
async def test_an_entry_is_deleted_once_both_readers_have_used_it(live: Case) -> None:
    for _ in range(3):
        await is_cancelled_as_it_waits(live)
    first, second, third = await ended(live)
    deliveries, streams = Deliveries(live.queue), EndedStreams(live.queue, Reader.WEBHOOKS)
    assert await deliveries.add(0, "", first.entry, []) == 0
    assert await deliveries.add(0, "", second.entry, []) is None  # another process was faster
    assert (await deliveries.backlog()).ended == 3
    assert await streams.read(0, first.entry, 1) == [second]
    await add_up(live.queue)
    assert await ended(live) == [second, third]
    assert (await UsageRecords(live.queue).backlog())[:2] == (0, 0.0)
    assert await deliveries.add(0, first.entry, third.entry, []) == 0
    await add_up(live.queue)
    assert await ended(live) == []
    assert (await deliveries.backlog())[:2] == (0, 0.0)
    for _ in range(350):
        live.server.xadd(keys.of("ended", 0), {"e": b"x"})
    await live.queue.sweep(0, 100, most_ended=200)  # what nobody reads is bounded
    backlog = await UsageRecords(live.queue).backlog()
    assert 200 <= backlog.entries < 350
    assert backlog.entries + backlog.dropped == 350


# --- sums ---


async def test_an_entry_is_added_once_by_processes_that_are_killed_or_many(live: Case) -> None:
    records = UsageRecords(live.queue)
    for _ in range(3):
        await complete(live, key=KEY)
    entries = await EndedStreams(live.queue, Reader.USAGE).read(0, "", 1000)
    assert await records.add(0, "", entries[:2], KEPT_DAYS)
    # Killed before they were deleted; and a slower process has read them, too.
    assert live.server.xlen(keys.of("ended", 0)) == 3
    assert not await records.add(0, "", entries, KEPT_DAYS)
    assert (await sums(live.queue))[OWNER].jobs == 2
    backlog = await records.backlog()
    assert (backlog.added, backlog.dropped) == (2, 0)
    await asyncio.gather(*(add_up(live.queue) for _ in range(4)))
    assert (await sums(live.queue))[OWNER][:8] == (3, 3, 0, 0, 0, 6, 0, 9)
    assert (await records.backlog())[0::2] == (0, 3)
    (used,) = await records.used(["t:" + TENANT], datetime.now(UTC).timestamp())
    assert used == (15, 15)


async def test_a_tenant_with_too_many_rows_has_one_for_the_rest(
    live: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.store.usage.MOST_ROWS", 2)
    for key in ("a", "b", "c", "d", "a"):
        await complete(live, key=key)
        await add_up(live.queue)
    found = await sums(live.queue)
    assert {owner.key: each.jobs for owner, each in found.items()} == {"a": 2, "b": 1, OTHER: 2}
    assert await sums(live.queue, "another") == {}
    assert len(await sums(live.queue, TENANT)) == 3

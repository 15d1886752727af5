"""The ledger on each kind of server: written with a job's end, added up once."""

from __future__ import annotations

from datetime import UTC, datetime

from gateway.maintenance.usage_counter import UsageCounter
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.usage_records import UsageRecords
from shared.tenants.usage import Owner, UsageSums
from tests.redis.conftest import TENANT, answer, claim_one, emit_token, finish, lease, renew, submit

KEPT_DAYS = 400


async def test_each_end_is_added_once(queue: JobQueue) -> None:
    completed = await lease(queue, key="key_1")
    assert await finish(queue, completed, 1, answer(cached_tokens=1)) == "ok"
    waiting = await submit(queue, key="key_1")
    await queue.cancel(waiting.id, TENANT)
    running = await lease(queue, key="key_1")
    await emit_token(queue, running, 1)
    await queue.release([running], "drain", blame=False)
    again = await claim_one(queue, worker="w-2")
    await emit_token(queue, again, 2)
    await queue.cancel(running.id, TENANT)
    await queue.delete(running.id)
    await renew(queue, "w-2", [again])  # by a worker that does not know of it yet
    for _ in range(2):
        await UsageCounter(queue, KEPT_DAYS).run()
    records, today = UsageRecords(queue), datetime.now(UTC).date()
    # A test that runs at midnight finds its jobs on two days.
    rows = [row async for part in records.rows(today.replace(day=1), today) for row in part]
    assert {row.owner for row in rows} == {Owner(TENANT, "key_1", "m")}
    found = UsageSums()
    for row in rows:
        found = found.plus(row.sums)
    assert found[:8] == (3, 1, 0, 2, 0, 2, 1, 5)
    assert found.uncounted == 0
    backlog = await records.backlog()
    assert (backlog.entries, backlog.oldest_s, backlog.added, backlog.dropped) == (0, 0.0, 3, 0)

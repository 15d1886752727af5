"""The audit trail in Redis: bounded."""

from __future__ import annotations

import redis as sync_redis

from shared.store.redis import audit_records, keys
from shared.store.redis.audit_records import AuditRecord, AuditRecords
from shared.store.redis.job_queue import JobQueue


def record(number: int) -> AuditRecord:
    return AuditRecord("key.created", f"key_{number}", "ops", "", "why", {"of_tenant": "team"})


async def test_the_number_of_entries_is_bounded(queue: JobQueue, store: sync_redis.Redis) -> None:
    with store.pipeline() as pipeline:
        for _ in range(audit_records.MOST + 500):
            pipeline.xadd(keys.AUDIT, {"action": "x"})
        pipeline.execute()
    await AuditRecords(queue.servers).append(record(0))
    assert store.xlen(keys.AUDIT) < audit_records.MOST + 200

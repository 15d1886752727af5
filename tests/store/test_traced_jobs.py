"""Where a job comes from, from its submission to its worker and its record."""

from __future__ import annotations

from shared.job.idempotency import IdempotencyKey
from shared.job.job import NO_ORIGIN, Origin
from shared.job.trace_context import new_trace
from shared.store import keys
from tests.store.conftest import Case

TRACED = Origin(new_trace().traceparent, "req-7")


async def test_a_worker_gets_the_origin_of_a_job(case: Case) -> None:
    name = IdempotencyKey.of("tenant", "/jobs", "key", b"body")
    for origin, key in ((TRACED, None), (TRACED, name), (NO_ORIGIN, None)):
        await case.submit(origin=origin, idempotency=key)
    claimed = await case.worker().claim()
    assert [job.origin for job in claimed] == [TRACED, TRACED, NO_ORIGIN]


async def test_a_damaged_origin_does_not_damage_the_job(case: Case) -> None:
    job = await case.submit()
    case.server.hset(keys.job(0, job.id), "origin", b"\xff\xfe no origin")
    assert await case.state(job) == "queued"
    assert (await case.worker().claim_one()).id == job.id

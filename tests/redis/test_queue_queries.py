"""Queries about jobs: position, depths, pages; and the sweep of the index."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.job import NewJob
from shared.job.lanes import DEFAULT, FLEX, LANES, PRIORITY, RETRY_LANE
from shared.job.place import Place
from shared.job.states import JobEvent
from shared.store.redis import keys
from shared.store.redis.depths import LaneDepth, depths, position, positions
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.listing import page, with_errors
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    POOL,
    TENANT,
    answer,
    claim,
    claim_one,
    emit,
    finish,
    log_entries,
    log_flush,
    make_job,
    open_queue,
    output,
    submit,
)

SHARDS = 4


@pytest.fixture
async def sharded(redis_url: str) -> AsyncIterator[JobQueue]:
    async with open_queue(redis_url, shards=SHARDS) as queue:
        yield queue


def job_id(shard: int, number: int = 0) -> str:
    return f"job_{shard:03x}{number:024x}"


async def place_of(queue: JobQueue, job: NewJob) -> int | None:
    there = await queue.get(job.id)
    assert there is not None
    return await position(queue, there)


async def test_positions_count_up_in_one_lane(queue: JobQueue) -> None:
    jobs = [await submit(queue) for _ in range(4)]
    assert [await place_of(queue, job) for job in jobs] == [1, 2, 3, 4]
    await claim(queue, 1)
    assert [await place_of(queue, job) for job in jobs] == [None, 1, 2, 3]
    await queue.cancel(jobs[1].id, TENANT)
    assert [await place_of(queue, job) for job in jobs] == [None, None, 1, 2]


async def test_better_lanes_go_first_and_other_pools_do_not_count(queue: JobQueue) -> None:
    flex = await submit(queue, lane=FLEX)
    default = await submit(queue, lane=DEFAULT)
    priority = await submit(queue, lane=PRIORITY)
    other = await submit(queue, lane=FLEX, pool="other")
    jobs = (flex, default, priority, other)
    assert [await place_of(queue, job) for job in jobs] == [3, 2, 1, 1]


async def test_jobs_of_several_tenants_come_in_turns(queue: JobQueue) -> None:
    many = [await submit(queue, tenant="many") for _ in range(10)]
    few = [await submit(queue, tenant="few") for _ in range(2)]
    assert [await place_of(queue, job) for job in many] == [2, 4, 6, 8, 10, 12, 12, 12, 12, 12]
    assert [await place_of(queue, job) for job in few] == [2, 4]
    await claim(queue, 8)
    assert [await place_of(queue, job) for job in many[6:]] == [1, 2, 3, 4], "it is alone again"


async def test_a_requeued_job_goes_before_all(queue: JobQueue) -> None:
    await submit(queue, lane=FLEX)
    (job,) = await claim(queue)
    for _ in range(3):
        await submit(queue, lane=PRIORITY)
    await queue.release([job], "drained", blame=False)
    found = await queue.get(job.id)
    assert found is not None
    assert await position(queue, found) == 1


async def test_the_position_counts_all_shards(sharded: JobQueue) -> None:
    jobs = [await submit(sharded, id=job_id(i % SHARDS, i)) for i in range(2 * SHARDS)]
    assert [await place_of(sharded, job) for job in jobs] == list(range(1, 2 * SHARDS + 1))
    await submit(sharded, id=job_id(3, 99), lane=PRIORITY)
    assert [await place_of(sharded, job) for job in jobs] == list(range(2, 2 * SHARDS + 2))


async def test_depths_of_an_empty_fleet(queue: JobQueue) -> None:
    assert await depths(queue) == []


async def test_depths_per_pool_and_lane(sharded: JobQueue) -> None:
    for shard in range(SHARDS):
        for _ in range(2):
            await submit(sharded, id=make_job().id.replace("job_000", f"job_{shard:03x}"))
        await claim(sharded, 1, shard=shard)
    await submit(sharded, pool="another", lane=FLEX)
    lanes = {(d.pool, d.lane): d for d in await depths(sharded)}
    assert set(lanes) == {(pool, lane) for pool in (POOL, "another") for lane in LANES}
    assert lanes[POOL, DEFAULT].waiting == lanes[POOL, DEFAULT].in_progress == SHARDS
    assert 0 < lanes[POOL, DEFAULT].oldest_s < 60
    assert (lanes["another", FLEX].waiting, lanes["another", FLEX].in_progress) == (1, 0)
    assert lanes[POOL, PRIORITY] == LaneDepth(POOL, PRIORITY, 0, 0.0, 0)


async def test_depths_of_released_jobs(queue: JobQueue) -> None:
    await submit(queue, lane=FLEX)
    await queue.release(await claim(queue), "drained", blame=False)
    lanes = {d.lane: (d.waiting, d.in_progress) for d in await depths(queue)}
    assert lanes == dict.fromkeys(LANES, (0, 0)) | {FLEX: (1, 0)}
    await claim(queue)
    lanes = {d.lane: (d.waiting, d.in_progress) for d in await depths(queue)}
    assert lanes == dict.fromkeys(LANES, (0, 0)) | {RETRY_LANE: (0, 1)}


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_show_jobs_of_the_same_microsecond_once(
    sharded: JobQueue, store: Redis, limit: int
) -> None:
    """Jobs of one call are a microsecond apart, and other gateways and shards have the same."""
    ids = [(await submit(sharded, id=job_id(i % 2, i))).id for i in range(6)]
    for each in ids[1:5]:
        shard = int(each[4:7], 16)
        store.zadd(keys.jobs(shard, TENANT), {each: 1_700_000_000_000_000})
    seen: list[str] = []
    cursor, found = "", None
    while found is None or found.cursor:
        before = Place.parse(cursor) if cursor else None
        found = await search(sharded, [TENANT], JobFilter(""), before, limit, 1000)
        seen += [job.id for job in found.jobs]
        cursor = str(found.cursor)
    assert sorted(seen) == sorted(ids)
    assert Place.parse("17") == (17, "")


async def test_a_page_reports_deleted_jobs_and_removes_them_from_the_index(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await submit(queue) for _ in range(3)]
    store.delete(keys.job(0, jobs[1].id))
    rows = await page(queue, [TENANT], None, 10)
    assert [(each, job is None) for _, each, job in rows] == [
        (jobs[2].id, False),
        (jobs[1].id, True),
        (jobs[0].id, False),
    ]
    assert len(await page(queue, [TENANT], None, 10)) == 2


def expire_record(store: Redis, job: NewJob) -> None:
    """Delete the job's record, as if its time to live had passed."""
    store.delete(keys.job(0, job.id))
    store.zadd(f"{keys.base(0)}{keys.EXPIRING}", {f"{job.id} {job.tenant}": 1})


async def swept(queue: JobQueue, n: int) -> int:
    """Sweep until `n` jobs were looked at; returns how many were."""
    total = 0

    async def enough() -> bool:
        nonlocal total
        total += await queue.sweep(0)
        return total >= n

    await eventually(enough, f"{n} swept")
    return total


async def test_sweeping_removes_deleted_jobs_and_nothing_else(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await submit(queue) for _ in range(4)]
    other = await submit(queue, tenant="another-tenant", ttl_s=0.001)
    ended = [*jobs[::2], other]
    for job in ended:
        await queue.cancel(job.id, job.tenant)
    for job in jobs[::2]:
        expire_record(store, job)
    assert await swept(queue, 3) == 3
    assert await queue.sweep(0) == 0
    left = store.zrange(keys.jobs(0, TENANT), 0, -1)
    assert left == [jobs[1].id.encode(), jobs[3].id.encode()]


async def test_one_sweep_checks_the_oldest_only(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue) for _ in range(5)]
    for job in jobs:
        await queue.cancel(job.id, TENANT)
        expire_record(store, job)
    assert [await queue.sweep(0, limit=2) for _ in range(4)] == [2, 2, 1, 0]


async def test_sweeping_forgets_workers_that_are_gone_but_none_that_holds_a_job(
    queue: JobQueue, store: Redis
) -> None:
    for worker in ("holds", "idle"):
        await submit(queue)
        (job,) = await claim(queue, worker=worker)
    assert await finish(queue, job, 1, answer()) == "ok"
    stream = keys.queue(0, POOL, DEFAULT)
    await queue.sweep(0)
    assert len(store.xinfo_consumers(stream, keys.GROUP)) == 2
    await queue.sweep(0, 100, dead_consumer_s=-0.001)
    assert [consumer["name"] for consumer in store.xinfo_consumers(stream, keys.GROUP)] == [
        b"holds"
    ]


async def test_entries_of_the_log_and_of_the_step_log_follow_each_other(queue: JobQueue) -> None:
    await submit(queue)
    (job,) = await claim(queue)
    outputs = [output(job, seq, str(seq)) for seq in range(1, 7)]
    for seq, each in enumerate(outputs, 1):
        # Each is put into the log with the one after it.
        log_flushes = [log_flush(outputs[seq - 2], seq - 1)] if seq > 1 else []
        await emit(queue, [each], log_flushes=log_flushes)
    texts = {n: [e.items[0] for e in await log_entries(queue, job.id, n)] for n in range(7)}
    assert texts == {n: [b"%d" % seq for seq in range(n + 1, 7)] for n in range(7)}
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.items, last.end) == (6, (b"6",), "")


async def test_entries_behind_a_number_and_the_last_one(queue: JobQueue) -> None:
    job = await submit(queue)
    assert await log_entries(queue, job.id, 0) == []
    assert await queue.last_entry(job.id) is None
    await queue.cancel(job.id, TENANT)
    assert [e.seq for e in await log_entries(queue, job.id, 0)] == [1]
    assert await log_entries(queue, job.id, 1) == []
    last = await queue.last_entry(job.id)
    assert last is not None
    assert (last.seq, last.end) == (1, "cancelled")


# --- what queries cost ---


def sent(store: Redis) -> int:
    """Bytes that Redis has sent to all clients."""
    return int(store.info("stats")["total_net_output_bytes"])


async def test_no_body_is_read_to_show_jobs(queue: JobQueue, store: Redis) -> None:
    jobs = [await submit(queue, body=b"x" * 1_000_000) for _ in range(5)]
    before = sent(store)
    rows = await page(queue, [TENANT], None, 100)
    shown = [job for _, _, job in rows if job is not None]
    assert {job.id for job in shown} == {job.id for job in jobs}
    assert await with_errors(queue, shown) == shown
    assert (await queue.get(jobs[0].id)) in shown
    assert sent(store) - before < 50_000


async def test_a_list_reads_short_errors_only(queue: JobQueue, store: Redis) -> None:
    refusal = answer(event=JobEvent.FAIL, error_code="rejected", status=400)
    bodies = {}
    for body in (b'{"error": {}}', b"x" * 1_000_000, b"fine"):
        await submit(queue, stream=False)
        job = await claim_one(queue)
        kind = answer() if body == b"fine" else refusal
        await finish(queue, job, 1, kind._replace(body=body))
        bodies[job.id] = body
    before = sent(store)
    shown = [job for _, _, job in await page(queue, [TENANT], None, 100) if job is not None]
    assert {job.result for job in shown} == {b""}
    found = {bodies[job.id]: job.result for job in await with_errors(queue, shown)}
    assert found == {b'{"error": {}}': b'{"error": {}}', b"x" * 1_000_000: b"", b"fine": b""}
    assert sent(store) - before < 50_000


async def test_positions_of_many_jobs_are_those_of_each(sharded: JobQueue) -> None:
    jobs = [
        await submit(sharded, id=job_id(i % SHARDS, i), lane=lane, pool=pool)
        for i, (lane, pool) in enumerate(
            [(FLEX, POOL), (DEFAULT, POOL), (PRIORITY, POOL), (FLEX, "other"), (DEFAULT, POOL)] * 3
        )
    ]
    await claim(sharded, 2)
    there = [job for each in jobs if (job := await sharded.get(each.id))]
    expected = [await position(sharded, job) for job in there]
    assert None in expected
    assert await positions(sharded, there) == expected
    assert await positions(sharded, []) == []

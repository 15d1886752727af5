"""What is shown of jobs: depths of lanes, places in them, lists, and the object of a job."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.job import NewJob
from shared.job.rules import CLIENT_LANES, DEFAULT, FLEX, PRIORITY
from shared.store import keys
from shared.store.queue import Queue
from shared.store.views import (
    LaneDepth,
    Place,
    alive,
    depths,
    next_place,
    page,
    places,
    with_errors,
)
from tests.harness.servers import RedisServer
from tests.store.conftest import BEGIN_US, POOL, TENANT, Case, make_job, open_case

SHARDS = 4


@pytest.fixture
async def sharded(one: RedisServer) -> AsyncIterator[Case]:
    async with open_case(one, shards=SHARDS, own_clock=False) as case:
        yield case


def job_id(shard: int, number: int = 0) -> str:
    return f"job_{shard:03x}{number:024x}"


async def positions(queue: Queue, *jobs: NewJob) -> list[int | None]:
    """Of the jobs that are still there, asked for together; each has the same by itself."""
    there = [job for job in await queue.get(*[job.id for job in jobs]) if job is not None]
    found = await places(queue, there)
    assert [(await places(queue, [job]))[0] for job in there] == found
    return [place and place.position for place in found]


# --- places ---


async def test_positions_in_one_lane(case: Case) -> None:
    jobs = [await case.submit() for _ in range(4)]
    assert await positions(case.queue, *jobs) == [1, 2, 3, 4]
    (held,) = await case.worker().claim(1)
    assert await positions(case.queue, *jobs) == [None, 1, 2, 3]
    await case.queue.cancel(TENANT, jobs[1].id)
    assert await positions(case.queue, *jobs) == [None, None, 1, 2]
    first = case.worker(heard=False)
    first.numbers[held.id] = held.number
    await first.write(held)
    await case.queue.give_back([held], "requeued", "engine_died")
    await case.submit(lane=PRIORITY)
    assert await positions(case.queue, *jobs) == [1, None, 3, 4]
    assert await places(case.queue, []) == []


async def test_jobs_of_several_tenants_come_in_turns(case: Case) -> None:
    many = [await case.submit(tenant="many") for _ in range(10)]
    few = [await case.submit(tenant="few") for _ in range(2)]
    assert await positions(case.queue, *many) == [2, 4, 6, 8, 10, 12, 12, 12, 12, 12]
    assert await positions(case.queue, *few) == [2, 4]
    new = await next_place(case.queue, POOL, DEFAULT, "new")
    assert (new.position, new.tenants, new.behind(100).position) == (3, 3, 113)
    await case.worker(room=8).claim()
    assert await positions(case.queue, *many[6:]) == [1, 2, 3, 4], "it is alone again"
    for worker, room in (("w-2", 2), ("w-3", 3)):
        await case.worker(worker, room=room).claim()
    own = await next_place(case.queue, POOL, DEFAULT, "many")
    assert (own.position, own.tenants, own.others, own.free) == (1, 1, 0, 1)


async def test_places_count_all_shards(sharded: Case) -> None:
    """The place of a job to come is the one that it gets."""
    kinds = [(FLEX, "a"), (DEFAULT, "a"), (DEFAULT, "b"), (PRIORITY, "a"), (FLEX, "b")] * 3
    for number, (lane, tenant) in enumerate(kinds):
        job = make_job(id=job_id(number % SHARDS, number), lane=lane, tenant=tenant)
        expected = await next_place(sharded.queue, job.pool, lane, tenant)
        await sharded.submit_all([job])
        assert await positions(sharded.queue, job) == [expected.position]
    jobs = [make_job(id=job_id(n % SHARDS, 99 + n), pool="other") for n in range(2 * SHARDS)]
    for n, job in enumerate(jobs):
        await sharded.submit_all([job])
        assert await positions(sharded.queue, *jobs[: n + 1]) == list(range(1, n + 2))


# --- depths ---


async def test_depths_by_pool_and_lane(sharded: Case) -> None:
    assert await depths(sharded.queue) == []
    for shard in range(SHARDS):
        for n in range(2):
            await sharded.submit(id=job_id(shard, n))
        worker = sharded.worker("w-1", shard=shard)
        (held,) = await worker.claim(1)
    assert await alive(sharded.queue) == {"w-1"}
    await sharded.queue.give_back([held], "handed_over", "drain")
    await sharded.submit(pool="another", lane=FLEX)
    lanes = {(d.pool, d.lane): d for d in await depths(sharded.queue)}
    assert set(lanes) == {(pool, lane) for pool in (POOL, "another") for lane in CLIENT_LANES}
    assert lanes[POOL, DEFAULT].waiting == SHARDS + 1
    assert sum(lanes[POOL, lane].in_progress for lane in CLIENT_LANES) == SHARDS - 1
    assert lanes["another", PRIORITY] == LaneDepth("another", PRIORITY, 0, 0.0, 0)
    assert lanes["another", FLEX].waiting == 1
    assert 0 < lanes["another", FLEX].oldest_s <= lanes[POOL, DEFAULT].oldest_s < 60


# --- lists ---


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_show_jobs_of_the_same_microsecond_once(sharded: Case, limit: int) -> None:
    """Jobs of one call are a microsecond apart, and other gateways and shards have the same."""
    ids = [(await sharded.submit(id=job_id(i % 2, i))).id for i in range(6)]
    for each in ids[1:5]:
        sharded.server.zadd(keys.of("jobs", int(each[4:7], 16), TENANT), {each: BEGIN_US})
    seen: list[str] = []
    cursor, found = "", None
    while found is None or found.cursor:
        before = Place.parse(cursor) if cursor else None
        found = await search(sharded.queue, [TENANT], JobFilter(""), before, limit, 1000)
        seen += [job.id for job in found.jobs]
        cursor = str(found.cursor)
    assert sorted(seen) == sorted(ids)


async def test_a_page_tells_deleted_jobs(case: Case) -> None:
    jobs = [await case.submit() for _ in range(3)]
    case.server.delete(keys.job(0, jobs[1].id))
    rows = await page(case.queue, [TENANT], None, 10)
    assert [(each, job is None) for _, each, job in rows] == [
        (jobs[2].id, False), (jobs[1].id, True), (jobs[0].id, False),
    ]  # fmt: skip


async def test_neither_bodies_nor_long_errors_are_read_to_show_jobs(alone: Case) -> None:
    refusal: dict[str, Any] = {"error_code": "rejected", "status": 400}
    bodies = {}
    for body in (b'{"error": {}}', b"x" * 1_000_000, b"fine"):
        worker, job = await alone.begin(stream=False, body=b"x" * 1_000_000)
        await worker.end(job, body=body, **({} if body == b"fine" else refusal))
        bodies[job.id] = body

    def sent() -> int:
        return int(alone.server.info("stats")["total_net_output_bytes"])

    before = sent()
    shown = [job for _, _, job in await page(alone.queue, [TENANT], None, 100) if job is not None]
    assert {job.result for job in shown} == {b""}
    found = {bodies[job.id]: job.result for job in await with_errors(alone.queue, shown)}
    assert found == {b'{"error": {}}': b'{"error": {}}', b"x" * 1_000_000: b"", b"fine": b""}
    await alone.queue.get(*bodies)
    assert sent() - before < 100_000

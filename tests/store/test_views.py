"""Views: depths of lanes, places in them, lists of jobs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence

import pytest
from redis import Redis

from gateway.core.job_filter import JobFilter
from gateway.core.job_search import search
from shared.job.job import NewJob
from shared.job.lanes import CLIENT_LANES, DEFAULT, FLEX, PRIORITY
from shared.job.place import Place
from shared.job.states import JobEvent
from shared.store import keys
from shared.store.queue import Queue
from shared.store.views import LaneDepth, alive, depths, next_place, page, places, with_errors
from tests.harness.servers import RedisServer
from tests.store.conftest import (
    POOL,
    TENANT,
    claim,
    claim_one,
    emit_token,
    finish,
    lose_worker,
    make_answer,
    make_job,
    open_queue,
    submit,
)

SHARDS = 4


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
async def sharded(redis_url: str) -> AsyncIterator[Queue]:
    async with open_queue(redis_url, shards=SHARDS) as queue:
        yield queue


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    with redis_server.client() as client:
        yield client


def job_id(shard: int, number: int = 0) -> str:
    return f"job_{shard:03x}{number:024x}"


# --- places ---


async def positions(queue: Queue, jobs: Sequence[NewJob]) -> list[int | None]:
    """Of the jobs that are still there, asked for together; each has the same by itself."""
    there = [job for job in await queue.get(*[job.id for job in jobs]) if job is not None]
    found = await places(queue, there)
    assert [(await places(queue, [job]))[0] for job in there] == found
    return [place and place.position for place in found]


async def next_position(queue: Queue, job: NewJob) -> int:
    """Where a job would wait that has not been submitted yet."""
    return (await next_place(queue, job.pool, job.lane, job.tenant)).position


async def test_positions_count_up_in_one_lane(queue: Queue) -> None:
    jobs = [await submit(queue) for _ in range(4)]
    assert await positions(queue, jobs) == [1, 2, 3, 4]
    await claim(queue, 1)
    assert await positions(queue, jobs) == [None, 1, 2, 3]
    await queue.cancel(TENANT, jobs[1].id)
    assert await positions(queue, jobs) == [None, None, 1, 2]
    assert await places(queue, []) == []


async def test_better_lanes_go_first_and_other_pools_do_not_count(queue: Queue) -> None:
    flex = await submit(queue, lane=FLEX)
    default = await submit(queue, lane=DEFAULT)
    priority = await submit(queue, lane=PRIORITY)
    other = await submit(queue, lane=FLEX, pool="other")
    assert await positions(queue, [flex, default, priority, other]) == [3, 2, 1, 1]


async def test_jobs_of_several_tenants_come_in_turns(queue: Queue) -> None:
    many = [await submit(queue, tenant="many") for _ in range(10)]
    few = [await submit(queue, tenant="few") for _ in range(2)]
    assert await positions(queue, many) == [2, 4, 6, 8, 10, 12, 12, 12, 12, 12]
    assert await positions(queue, few) == [2, 4]
    await claim(queue, 8)
    assert await positions(queue, many[6:]) == [1, 2, 3, 4], "it is alone again"


async def test_a_requeued_job_goes_before_all(queue: Queue) -> None:
    job = await submit(queue, lane=FLEX)
    held = await claim(queue)
    await emit_token(queue, held[0])
    later = [await submit(queue, lane=lane) for lane in (PRIORITY, PRIORITY, FLEX)]
    await queue.give_back(held, "requeued", "engine_died")
    assert await positions(queue, [job, later[2]]) == [1, 4]


async def test_the_position_counts_all_shards(sharded: Queue) -> None:
    jobs = [await submit(sharded, id=job_id(i % SHARDS, i)) for i in range(2 * SHARDS)]
    assert await positions(sharded, jobs) == list(range(1, 2 * SHARDS + 1))
    await submit(sharded, id=job_id(3, 99), lane=PRIORITY)
    assert await positions(sharded, jobs) == list(range(2, 2 * SHARDS + 2))


async def test_the_place_of_a_job_to_come_is_the_one_that_it_gets(sharded: Queue) -> None:
    kinds = [(FLEX, "a"), (DEFAULT, "a"), (DEFAULT, "b"), (PRIORITY, "a"), (FLEX, "b")] * 3
    for number, (lane, tenant) in enumerate(kinds):
        job = make_job(id=job_id(number % SHARDS, number), lane=lane, tenant=tenant)
        expected = await next_position(sharded, job)
        (reply,) = sharded.parse_submit([job], await sharded.submit(job.shard, [job], 1000))
        assert not isinstance(reply, Exception)
        assert await positions(sharded, [job]) == [expected]


async def test_a_tenant_with_more_jobs_waits_for_more_turns(queue: Queue) -> None:
    for _ in range(20):
        await submit(queue)
    own = await next_place(queue, POOL, DEFAULT, TENANT)
    assert (own.position, own.tenants, own.others, own.free) == (21, 1, 20, 0)
    other = await next_place(queue, POOL, DEFAULT, "other")
    assert (other.position, other.tenants, other.behind(100).position) == (2, 2, 121)
    assert (await next_place(queue, POOL, FLEX, "other")).position == 21


async def test_the_room_of_idle_workers_is_told(queue: Queue) -> None:
    for worker, room in (("w-1", 9), ("w-2", 3)):
        await claim(queue, room, worker=worker)
    assert (await next_place(queue, POOL, DEFAULT, TENANT)).free == 12


async def test_workers_are_alive_while_they_beat(queue: Queue, store: Redis) -> None:
    for worker in ("w-1", "w-2"):
        await queue.heartbeat(0, worker)
    assert await alive(queue) == {"w-1", "w-2"}
    await lose_worker(queue, store, "w-1")
    assert await alive(queue) == {"w-2"}


# --- depths ---


async def test_depths_of_an_empty_fleet(queue: Queue) -> None:
    assert await depths(queue) == []


async def test_depths_per_pool_and_lane(sharded: Queue) -> None:
    for shard in range(SHARDS):
        for _ in range(2):
            await submit(sharded, id=make_job().id.replace("job_000", f"job_{shard:03x}"))
        await claim(sharded, 1, shard=shard)
    await submit(sharded, pool="another", lane=FLEX)
    lanes = {(d.pool, d.lane): d for d in await depths(sharded)}
    assert set(lanes) == {(pool, lane) for pool in (POOL, "another") for lane in CLIENT_LANES}
    assert lanes[POOL, DEFAULT].waiting == SHARDS
    assert sum(lanes[POOL, lane].in_progress for lane in CLIENT_LANES) == SHARDS
    assert 0 < lanes[POOL, DEFAULT].oldest_s < 60
    assert lanes["another", FLEX] == LaneDepth(
        "another", FLEX, 1, lanes["another", FLEX].oldest_s, 0
    )


async def test_depths_of_jobs_that_were_given_back(queue: Queue) -> None:
    await submit(queue, lane=FLEX)
    await queue.give_back(await claim(queue), "handed_over", "drain")
    found = await depths(queue)
    assert {d.lane: d.waiting for d in found} == dict.fromkeys(CLIENT_LANES, 0) | {FLEX: 1}
    assert sum(d.in_progress for d in found) == 0
    await claim(queue)
    found = await depths(queue)
    assert (sum(d.waiting for d in found), sum(d.in_progress for d in found)) == (0, 1)


# --- lists ---


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_pages_show_jobs_of_the_same_microsecond_once(
    sharded: Queue, store: Redis, limit: int
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
    queue: Queue, store: Redis
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


def sent(store: Redis) -> int:
    """Bytes that Redis has sent to all clients."""
    return int(store.info("stats")["total_net_output_bytes"])


async def test_no_body_is_read_to_show_jobs(queue: Queue, store: Redis) -> None:
    jobs = [await submit(queue, body=b"x" * 1_000_000) for _ in range(5)]
    before = sent(store)
    rows = await page(queue, [TENANT], None, 100)
    shown = [job for _, _, job in rows if job is not None]
    assert {job.id for job in shown} == {job.id for job in jobs}
    assert await with_errors(queue, shown) == shown
    assert (await queue.get(jobs[0].id))[0] in shown
    assert sent(store) - before < 50_000


async def test_a_list_reads_short_errors_only(queue: Queue, store: Redis) -> None:
    refusal = make_answer(event=JobEvent.FAIL, error_code="rejected", status=400)
    bodies = {}
    for body in (b'{"error": {}}', b"x" * 1_000_000, b"fine"):
        await submit(queue, stream=False)
        job = await claim_one(queue)
        kind = make_answer() if body == b"fine" else refusal
        await finish(queue, job, kind._replace(body=body))
        bodies[job.id] = body
    before = sent(store)
    shown = [job for _, _, job in await page(queue, [TENANT], None, 100) if job is not None]
    assert {job.result for job in shown} == {b""}
    found = {bodies[job.id]: job.result for job in await with_errors(queue, shown)}
    assert found == {b'{"error": {}}': b'{"error": {}}', b"x" * 1_000_000: b"", b"fine": b""}
    assert sent(store) - before < 50_000

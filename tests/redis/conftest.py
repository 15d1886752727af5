"""A queue on an empty Redis, and helpers for what the tests do with it."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

import pytest
import redis as sync_redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate, advertiser
from shared.job.errors import FlotillaError
from shared.job.frames import ControlKind, FrameKind, decode_control, encode, entry_of
from shared.job.frames import decode as decode_frames
from shared.job.job import LeasedJob, NewJob, new_job_id
from shared.job.job_log import Entry, Journal, make_journal, pack_segment
from shared.job.lanes import DEFAULT, LANES
from shared.job.record import parse_job, read_lease
from shared.job.replies import Fenced
from shared.job.result import JobResult
from shared.job.states import TRANSITIONS, JobEvent
from shared.job.step_log import FinalEntry, JobOutput, JobStream, LogFlush
from shared.store.interface import Store
from shared.store.redis import keys, suspects
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.acquire import parse_jobs
from shared.store.redis.scripts.emit import make_step
from shared.store.servers import Servers
from shared.store.subscription import channel_commands
from tests.harness.servers import RedisServer

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
    """A client that reads what Redis holds."""
    with redis_server.client() as client:
        yield client


@contextlib.asynccontextmanager
async def open_queue(url: str, *, shards: int = 1) -> AsyncIterator[JobQueue]:
    """A queue whose connections are closed at the end."""
    async with Servers(url, shards) as servers:
        queue = JobQueue(servers)
        try:
            yield queue
        finally:
            await queue.close()


Frame = tuple[bytes, int, int, Any, Any]
"""Job, seq, kind, journal, payload: what most tests compare."""


def decode(message: bytes) -> list[Frame]:
    """The frames of a message, without their generations."""
    return [
        (job, seq, kind, journal, payload)
        for job, seq, _, kind, journal, payload in decode_frames(message)
    ]


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
    """Submit a job; it is queued."""
    job = make_job(**changes)
    await submit_one(queue, job, 1000)
    return job


async def submit_one(queue: JobQueue, job: NewJob, max_depth: int) -> int:
    """Submit a job; returns how many wait, 0 if it has a worker already. Raises what refuses it."""
    (depth,) = await queue.submit_all(job.shard, [job], max_depth)
    if isinstance(depth, FlotillaError):
        raise depth
    assert isinstance(depth, int)
    return depth


async def claim(
    queue: JobQueue,
    count: int = 100,
    worker: str = WORKER,
    shard: int = 0,
    lease_s: float = LEASE_S,
    slots: int = 0,
    acknowledged: int | str = UNKNOWN,
) -> list[LeasedJob]:
    """Claim up to `count` jobs for a worker that advertises `slots` free slots.

    Where only suspects wait, one of them.
    """
    update = SlotUpdate(POOL, advertiser(worker, lease_s), slots, acknowledged)
    acquired = await queue.acquire(shard, worker, count, lease_s, update)
    if acquired.suspects and not acquired.jobs and count:
        suspect = (await suspects.acquire(queue, shard, worker, 1, lease_s, update)).job
        return [suspect] if suspect else []
    return acquired.jobs


async def claim_one(queue: JobQueue, worker: str = WORKER, lease_s: float = LEASE_S) -> LeasedJob:
    """Claim the only queued job."""
    (job,) = await claim(queue, worker=worker, lease_s=lease_s)
    return job


async def lease(queue: JobQueue, **changes: Any) -> LeasedJob:
    """Submit and claim a job; no other job may be queued."""
    await submit(queue, **changes)
    return await claim_one(queue)


async def log_entries(queue: Store, job_id: str, after: int) -> list[Entry]:
    """The job's log behind entry number `after`."""
    return (await queue.read_log(job_id, after)).entries


async def emit_token(queue: JobQueue, job: LeasedJob, seq: int, text: str = "x") -> dict[str, str]:
    """Emit one token of one job; returns the lost jobs."""
    return await emit(queue, [output(job, seq, text)])


async def emit_and_flush(queue: JobQueue, job: LeasedJob) -> dict[str, str]:
    """Emit the first token of a job and flush it to the job log in the same call."""
    first = output(job, 1)
    return await emit(queue, [first], log_flushes=[log_flush(first, 1)])


def output(job: LeasedJob, seq: int, text: str = "x", answer: JobResult | None = None) -> JobOutput:
    """One token of a job, and its end if `answer` is given."""
    items = (text.encode(),) if job.stream else None
    return entry_output(job, seq, items, make_journal([(0, 0, [seq], text)]), answer)


def entry_output(
    job: LeasedJob, seq: int, items: Any, journal: Journal, answer: JobResult | None = None
) -> JobOutput:
    """Any entry of a job, and its end if `answer` is given."""
    kind = FrameKind.CHUNK if job.stream else FrameKind.DELTAS
    frame = encode(job.id, seq, kind, items, journal, job.generation)
    if answer is None:
        return JobStream(job), frame, None
    segment = pack_segment(seq, [entry_of(frame, job.id, seq, job.generation)])
    return JobStream(job), frame, FinalEntry(seq + 1, segment, answer)


def end_without_output(job: LeasedJob, seq: int, answer: JobResult) -> JobOutput:
    """Only the end of a job; `seq` is the number of its last entry."""
    return JobStream(job), b"", FinalEntry(seq, b"", answer)


def log_flush(output: JobOutput, seq: int) -> LogFlush:
    """The flush of entry `seq` of an output into the job log."""
    job_stream, frame, _ = output
    job_id = job_stream.job.id
    return LogFlush(
        job_id, pack_segment(seq, [entry_of(frame, job_id, seq, job_stream.job.generation)])
    )


_fence_tokens: dict[tuple[JobQueue, str, int], str] = {}


async def emit(
    queue: JobQueue,
    outputs: Sequence[JobOutput],
    *,
    worker: str = "",
    log_flushes: Sequence[LogFlush] = (),
    again: bool = False,
    slots: SlotUpdate | None = None,
) -> dict[str, str]:
    """Emit one step as a worker does: it renews an invalid token and leaves out lost jobs.

    Returns the lost jobs. The worker is the one that holds the first job, else `WORKER`.
    """
    jobs = [job_stream.job for job_stream, _, _ in outputs]
    shard = jobs[0].shard if jobs else 0
    if not worker:
        redis = queue.servers.of(shard)
        packed = jobs and await redis.hget(keys.job(shard, jobs[0].id), "lease")
        worker = (packed and read_lease(packed).worker) or WORKER
    token_key, left = (queue, worker, shard), list(outputs)
    lost: dict[str, str] = {}
    while True:
        fence_token = _fence_tokens.get(token_key, "")
        if not fence_token or any(
            job_stream.fence_token != fence_token for job_stream, _, _ in left
        ):
            held = [job_stream.job for job_stream, _, _ in left]
            renewal = await queue.renew(shard, worker, fence_token, LEASE_S, held)
            fence_token = _fence_tokens[token_key] = renewal.fence_token
            lost |= renewal.lost
            for job_stream, _, end in left:
                job_stream.fence_token = fence_token
                if job_stream.job.id in renewal.watchers:
                    watchers, watched = renewal.watchers[job_stream.job.id]
                    job_stream.set_watchers(watchers, watched=watched)
                elif (
                    end is not None
                    and TRANSITIONS[end.result.event].target == lost[job_stream.job.id]
                ):
                    del lost[job_stream.job.id]  # perhaps by this worker; the script decides
            left = [each for each in left if each[0].job.id not in lost]
            log_flushes = [each for each in log_flushes if each.job_id not in lost]
        if not left and outputs:
            return lost
        try:
            step = make_step(left, log_flushes)
            return lost | await queue.emit(
                shard, worker, fence_token, step, repeated=again, slots=slots
            )
        except Fenced:
            del _fence_tokens[token_key]


async def next_fence_token(queue: JobQueue, worker: str = WORKER, shard: int = 0) -> str:
    """Renew to get the worker's next fencing token, valid for the jobs that it claims later."""
    renewal = await queue.renew(shard, worker, "", LEASE_S, [])
    _fence_tokens[queue, worker, shard] = renewal.fence_token
    return renewal.fence_token


async def renew(queue: JobQueue, worker: str, jobs: Sequence[LeasedJob]) -> dict[str, str]:
    """Renew leases; returns the jobs that were lost."""
    lost: dict[str, str] = {}
    for shard in sorted({job.shard for job in jobs}):
        held = [job for job in jobs if job.shard == shard]
        fence_token = _fence_tokens.get((queue, worker, shard), "")
        renewal = await queue.renew(shard, worker, fence_token, LEASE_S, held)
        _fence_tokens[queue, worker, shard] = renewal.fence_token
        lost |= renewal.lost
    return lost


async def finish(queue: JobQueue, job: LeasedJob, seq: int, answer: JobResult) -> str:
    """End a job; 'ok', or its state if it was lost."""
    lost = await emit(queue, [end_without_output(job, seq, answer)])
    return lost.get(job.id, "ok")


def answer(**changes: Any) -> JobResult:
    fields: dict[str, Any] = {
        "event": JobEvent.COMPLETE,
        "error_code": "",
        "status": 200,
        "content_type": "text/event-stream",
        "body": b"",
        "prompt_tokens": 2,
        "completion_tokens": 3,
    }
    return JobResult(**(fields | changes))


def lane_of(raw: Mapping[bytes, bytes]) -> str:
    """The lane of the stream that has the job's entry, by the job record."""
    other = raw.get(b"queue")
    return other.decode().split(":")[1] if other else parse_job("", raw).lane


def expire_lease(store: sync_redis.Redis, job: LeasedJob) -> None:
    """Set the idle time of a lease as if it had not been renewed for long."""
    raw = store.hgetall(keys.job(job.shard, job.id))
    stream, entry = keys.queue(job.shard, POOL, lane_of(raw)), raw[b"entry"]
    (pending,) = store.xpending_range(stream, keys.GROUP, entry, entry, 1)
    store.xclaim(stream, keys.GROUP, pending["consumer"], 0, [entry], idle=LONG_AGO_MS, justid=True)


def pass_deadline(store: sync_redis.Redis, job_id: str, shard: int = 0) -> None:
    """Let a job's deadline be over."""
    store.zadd(keys.base(shard) + keys.DEADLINES, {job_id: 1})


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


class ChannelSubscriber:
    """A subscriber of a channel; each call returns all that was published since the last one."""

    def __init__(self, store: sync_redis.Redis, channel: str, shard: int = 0) -> None:
        """`channel`: by the name that it has on one Redis."""
        self._store = store
        self._channel = keys.channel_at(shard, channel)
        self._pubsub = store.pubsub()
        self._pubsub.execute_command(channel_commands().subscribe, self._channel)
        self._next()

    def _next(self) -> bytes:
        """What comes next: a message, or the number of subscriptions."""
        while (message := self._pubsub.parse_response(block=False, timeout=5)) is None:
            continue
        return message[2]

    def messages(self) -> list[bytes]:
        """The messages since the last call."""
        self._store.execute_command(channel_commands().publish, self._channel, "that is all")
        received = []
        while (message := self._next()) != b"that is all":
            received.append(message)
        return received

    def frames(self) -> list[Frame]:
        """The frames since the last call, without their generations."""
        return [frame for message in self.messages() for frame in decode(message)]

    def dropped(self) -> list[str]:
        """The jobs that a worker was asked to drop since the last call."""
        received = [decode_control(message) for message in self.messages()]
        return [words[0].decode() for kind, words in received if kind is ControlKind.DROP]

    def assigned(self, queue: JobQueue) -> list[LeasedJob]:
        """The jobs that were assigned to a worker since the last call."""
        received = [decode_control(message) for message in self.messages()]
        return [
            job
            for kind, words in received
            if kind is ControlKind.JOBS
            for job in parse_jobs(*words)
        ]

    def close(self) -> None:
        self._pubsub.close()


@contextlib.contextmanager
def gateway_messages(server: sync_redis.Redis, name: str = GATEWAY) -> Iterator[ChannelSubscriber]:
    """What a gateway receives from this server."""
    with contextlib.closing(ChannelSubscriber(server, keys.tokens_channel(name))) as subscriber:
        yield subscriber


@contextlib.contextmanager
def control_messages(server: sync_redis.Redis) -> Iterator[ChannelSubscriber]:
    """What the worker that `claim` names receives from this server."""
    with contextlib.closing(ChannelSubscriber(server, keys.control_channel(WORKER))) as subscriber:
        yield subscriber


@pytest.fixture
def gateway(store: sync_redis.Redis) -> Iterator[ChannelSubscriber]:
    """The gateway that `make_job` names."""
    with gateway_messages(store) as subscriber:
        yield subscriber


@pytest.fixture
def other_gateway(store: sync_redis.Redis) -> Iterator[ChannelSubscriber]:
    """A second gateway, `gw-2`."""
    with gateway_messages(store, "gw-2") as subscriber:
        yield subscriber


@pytest.fixture
def control(store: sync_redis.Redis) -> Iterator[ChannelSubscriber]:
    """A subscriber of the control channel of the worker that `claim` names."""
    with control_messages(store) as subscriber:
        yield subscriber

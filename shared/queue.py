"""The queue: everything that moves a job, and what can be asked about it.

Gateways submit, watch and cancel; workers acquire, emit, renew and release. Every change is
one script call (scripts.py), fenced where a worker makes it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgpack

from shared import keys
from shared.channel import FrameKind, encode, encode_head
from shared.errors import QueueFull
from shared.job import Job, LeasedJob, NewJob, parse_job, shard_of
from shared.lanes import CLIENT_LANES, LANES
from shared.line import Argument
from shared.redis import Redis
from shared.scripts import Scripts
from shared.states import JobEvent, JobState
from shared.token_log import Entry, parse_entries

# Redis' cmsgpack knows no `bin` type, so bytes travel to scripts in the old raw strings.
_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack

_THREE = b"\x93"  # msgpack's head of an array of three

# A longer answer is not sent along in the frame that tells of it: the gateway reads the hash.
INLINE_RESULT_BYTES = 64 << 10
PATIENCE_S = 0.02
"""Most that the reply to a patient call waits for company, longer than most engine steps."""
# An idle worker asks for work every few seconds; this is long past any pause of a live one.
_DEAD_CONSUMER_S = 600.0


@dataclass(frozen=True, slots=True)
class Answer:
    """How a worker ends a job."""

    event: JobEvent
    error_code: str
    status: int
    content_type: str
    body: bytes
    """Empty for a streamed answer: its chunks are in the log."""
    prompt_tokens: int
    completion_tokens: int


class Emission(NamedTuple):
    """What one job has to say after an engine step, as lua/emit.lua takes it."""

    job_id: str
    nonce: str
    seq: int
    """Number of the log entry; with nothing to say, of the one that tells of the end."""
    chunks: bytes
    """Packed; `NO_CHUNKS` if there is only a journal, empty if there is nothing to say."""
    journal: bytes
    head: bytes
    """Of the entry's frame."""
    quiet: bool
    """The frame is for those only who watch the job's events."""
    ending: tuple[Any, ...] | Literal[False]


def make_emission(
    job: LeasedJob, seq: int, chunks: bytes, journal: bytes, answer: Answer | None = None
) -> Emission:
    """`answer` is set if the job ends with this."""
    kind = FrameKind.CHUNK if job.stream else FrameKind.DELTAS
    head = encode_head(job.id, seq, kind)
    ending: tuple[Any, ...] | Literal[False] = False
    if answer is not None:
        ending = _ending(job, seq + 1 if chunks else seq, answer)
    return Emission(job.id, job.nonce, seq, chunks, journal, head, not job.stream, ending)


UNKNOWN = ""


class Offer(NamedTuple):
    """Slots of a worker that jobs to come may have without a wait."""

    pool: str
    offerer: str
    """`keys.offerer`."""
    slots: int
    told: int | str
    """What it takes for left of its last offer: if less is left, jobs are on their way to it."""


@dataclass(frozen=True, slots=True)
class LaneDepth:
    """What waits in one lane of a pool, over all shards."""

    pool: str
    lane: str
    waiting: int
    oldest_s: float
    in_progress: int


class JobQueue:
    """All queues of a fleet. Raises redis' errors when Redis can't be reached."""

    def __init__(self, redis: Redis, *, shards: int) -> None:
        # redis-py types every reply as bytes or str; ours are bytes.
        self.redis: Any = redis
        self.scripts = Scripts(redis)
        self.shards = shards

    async def close(self) -> None:
        """End its own connection; the Redis that was given stays open."""
        await self.scripts.close()

    def read_on(self) -> None:
        """Replies to patient calls are read now; otherwise they wait `PATIENCE_S` at most."""
        self.scripts.read_on()

    # --- the gateway's side ---

    async def submit(self, job: NewJob, max_depth: int) -> int:
        """Queue a job; returns how many wait in its lane and shard, 0 if it has a worker already.

        Raises QueueFull.
        """
        (depth,) = await self.submit_all(_shard(job.id), [job], max_depth)
        if isinstance(depth, QueueFull):
            raise depth
        return depth

    async def submit_all(
        self, shard: int, jobs: Sequence[NewJob], max_depth: int, *, patient: bool = False
    ) -> list[int | QueueFull]:
        """Queue jobs of one shard in one call; for each what `submit` returns or raises."""
        packed = _pack([_new(job) for job in jobs])
        seed = _nonce_seed()
        reply = await self.scripts.submit(shard, packed, max_depth, seed, PATIENCE_S * patient)
        return [
            QueueFull(f"{depth} jobs wait for {job.model!r} already; try again later.")
            if word == b"full"
            else depth
            for job, word, depth in zip(jobs, reply[::2], reply[1::2], strict=True)
        ]

    async def cancel(self, job_id: str, tenant: str) -> JobState | None:
        """The state after the attempt; None if the tenant has no such job."""
        shard = shard_of(job_id)
        state = None if shard is None else await self.scripts.cancel(shard, job_id, tenant)
        return None if state is None else JobState(state)

    async def watch(self, job_id: str, gateway: str, *, sees: bool) -> None:
        """Have the job's frames sent to this gateway from now on.

        `sees`: its client is shown the answer as it grows, so nobody may start it anew.
        """
        await self.scripts.watch(_shard(job_id), job_id, gateway, sees)

    async def get(self, job_id: str) -> Job | None:
        """The job, whosever it is."""
        shard = shard_of(job_id)
        if shard is None:
            return None
        raw: Mapping[bytes, bytes] = await self.redis.hgetall(keys.job(shard, job_id))
        return parse_job(job_id, raw) if raw else None

    async def entries(self, job_id: str, after: int) -> list[Entry]:
        """The job's log entries behind number `after`."""
        key = keys.log(_shard(job_id), job_id)
        return parse_entries(await self.redis.lrange(key, after, -1), after)

    async def last_entry(self, job_id: str) -> Entry | None:
        """The log's last entry; None if it is empty."""
        key = keys.log(_shard(job_id), job_id)
        pipe = self.redis.pipeline(transaction=True)
        pipe.llen(key).lrange(key, -1, -1)
        length, last = await pipe.execute()
        return parse_entries(last, length - 1)[0] if last else None

    async def position(self, job: Job) -> int | None:
        """How many jobs go first, plus one; None if it does not wait (any more)."""
        pipe = self.redis.pipeline(transaction=False)
        better = CLIENT_LANES[: CLIENT_LANES.index(job.lane)]
        pipe.zscore(keys.waiting(_shard(job.id), job.pool, job.lane), job.id)
        for shard in range(self.shards):
            pipe.zcount(keys.waiting(shard, job.pool, job.lane), "-inf", job.created_us)
            for lane in better:
                pipe.zcard(keys.waiting(shard, job.pool, lane))
        waits, *ahead = await pipe.execute()
        return None if waits is None else max(1, sum(ahead))

    async def page(
        self, tenant: str, before: int | None, limit: int
    ) -> list[tuple[int, str, Job | None]]:
        """`(created_us, id, job)` of at most `limit` jobs before that time, newest first.

        A job is None when it has expired; its place in the index is swept.
        """
        upper = "+inf" if before is None else f"({before}"
        pipe = self.redis.pipeline(transaction=False)
        for shard in range(self.shards):
            pipe.zrevrangebyscore(
                keys.jobs(shard, tenant), upper, "-inf", start=0, num=limit, withscores=True
            )
        found = sorted(
            (
                (int(score), job_id.decode())
                for part in await pipe.execute()
                for job_id, score in part
            ),
            reverse=True,
        )[:limit]
        for _, job_id in found:
            pipe.hgetall(keys.job(_shard(job_id), job_id))
        hashes = await pipe.execute()
        page = []
        for (created_us, job_id), raw in zip(found, hashes, strict=True):
            page.append((created_us, job_id, parse_job(job_id, raw) if raw else None))
            if not raw:
                pipe.zrem(keys.jobs(_shard(job_id), tenant), job_id)
        await pipe.execute()
        return page

    async def depths(self) -> list[LaneDepth]:
        """What waits and what runs, per pool and lane."""
        pipe = self.redis.pipeline(transaction=False)
        for shard in range(self.shards):
            pipe.smembers(keys.pools(shard))
        pools = sorted({pool.decode() for part in await pipe.execute() for pool in part})
        places = [(pool, lane) for pool in pools for lane in CLIENT_LANES]
        pipe.time()
        for pool, lane in places:
            for shard in range(self.shards):
                pipe.zcard(keys.waiting(shard, pool, lane))
                pipe.zrange(keys.waiting(shard, pool, lane), 0, 0, withscores=True)
        for pool in pools:
            for lane in LANES:
                for shard in range(self.shards):
                    pipe.xpending(keys.queue(shard, pool, lane), keys.GROUP)
        (seconds, micros), *replies = await pipe.execute(raise_on_error=False)
        now_us = int(seconds) * 1_000_000 + int(micros)
        reply = iter(replies)
        waiting, oldest = {}, {}
        for place in places:
            counts, firsts = [], []
            for _ in range(self.shards):
                counts.append(next(reply))
                firsts += [int(score) for _, score in next(reply)]
            waiting[place] = sum(counts)
            oldest[place] = (now_us - min(firsts)) / 1e6 if firsts else 0.0
        running = {}
        for pool in pools:
            for lane in LANES:
                pending = [next(reply) for _ in range(self.shards)]
                # No group yet: nothing was ever delivered from that lane.
                running[pool, lane] = sum(p["pending"] for p in pending if isinstance(p, dict))
        return [
            LaneDepth(pool, lane, waiting[pool, lane], oldest[pool, lane], running[pool, lane])
            if lane in CLIENT_LANES
            else LaneDepth(pool, lane, 0, 0.0, running[pool, lane])
            for pool in pools
            for lane in LANES
        ]

    # --- the worker's side ---

    async def acquire(
        self, shard: int, pool: str, worker: str, count: int, lease_s: float
    ) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first; their leases end unless renewed."""
        offer = Offer(pool, keys.offerer(worker, lease_s), 0, UNKNOWN)
        arguments = _claim(worker, count, lease_s, offer)
        return self.claimed(await self.scripts.acquire(shard, *arguments))[1]

    def acquire_command(
        self, shard: int, worker: str, count: int, lease_s: float, offer: Offer
    ) -> tuple[Argument, ...]:
        """What `acquire` sends; its reply is for `claimed`. The scripts must be ready.

        `offer`: slots that are free, `count` included. What nothing waits for is offered to jobs to
        come: `submit` then leases them, and tells the worker on its control channel.
        """
        return self.scripts.acquire_command(shard, *_claim(worker, count, lease_s, offer))

    def claimed(self, reply: Sequence[Any]) -> tuple[int, list[LeasedJob]]:
        """What is left on offer, and the jobs, in a reply of the acquire script."""
        now, left, *jobs = reply
        return int(left), self.leased(now, jobs)

    def leased(self, now: bytes, jobs: Iterable[Sequence[Any]]) -> list[LeasedJob]:
        """Jobs as the scripts give them to a worker; `now` is Redis' time in us."""
        now_us = int(now)
        return [
            LeasedJob(
                id=job_id.decode(),
                shard=_shard(job_id.decode()),
                nonce=nonce.decode(),
                attempt=int(attempt),
                stream=stream == b"1",
                endpoint=endpoint.decode(),
                body=body,
                waited_s=max(0, now_us - int(created_us)) / 1e6,
            )
            for job_id, nonce, attempt, created_us, stream, endpoint, body in jobs
        ]

    async def ring(self, pool: str) -> None:
        """Wake one idle worker of the pool."""
        await self.redis.rpush(keys.bell(0, pool), 1)

    async def emit(
        self,
        shard: int,
        emissions: Sequence[Emission],
        *,
        offer: Offer | None = None,
        patient: bool = False,
    ) -> dict[str, str]:
        """Log and publish one engine step; returns the jobs that were lost: id -> state.

        `offer`: what the worker has to spare, if that has changed.
        """
        patience_s = PATIENCE_S * patient
        packed = _pack(emissions)
        return _lost(await self.scripts.emit(shard, packed, *(offer or ()), patience_s=patience_s))

    async def withdraw(self, pool: str, worker: str, lease_s: float) -> None:
        """The worker offers nothing any more."""
        for shard in range(self.shards):
            await self.redis.zrem(keys.offers(shard, pool), keys.offerer(worker, lease_s))

    async def renew(self, worker: str, jobs: Iterable[LeasedJob]) -> dict[str, str]:
        """Renew leases; returns the jobs that were lost: id -> state."""
        lost: dict[str, str] = {}
        for shard, held in _by_shard(jobs).items():
            lost |= _lost(await self.scripts.renew(shard, worker, held))
        return lost

    async def disown(
        self, pool: str, worker: str, known: Iterable[str], older_s: float
    ) -> dict[str, str]:
        """Hand back what was given to this worker so long ago and is not `known` to it.

        For after a lost connection: it may have missed what it was told. Returns new states.
        """
        states: dict[str, str] = {}
        packed = _pack(list(known))
        for shard in range(self.shards):
            reply = await self.scripts.disown(shard, pool, worker, packed, int(older_s * 1000))
            states |= _lost(reply)
        return states

    async def release(
        self, jobs: Iterable[LeasedJob], reason: str, *, blame: bool
    ) -> dict[str, str]:
        """Hand jobs back; returns their new states. `blame` counts the attempt against each."""
        states: dict[str, str] = {}
        for shard, held in _by_shard(jobs).items():
            reply = await self.scripts.release(shard, reason, blame, held)
            states |= _lost(reply)
        return states

    # --- upkeep ---

    async def reap(self, shard: int, lease_s: float, limit: int = 100) -> dict[str, str]:
        """Take back the jobs of workers that are silent for this long, and for their lease.

        Returns the jobs' new states.
        """
        return _lost(await self.scripts.reap(shard, int(lease_s * 1000), limit))

    async def sweep(self, shard: int, limit: int = 100) -> int:
        """Take jobs that have expired out of the index, and dead workers out of the groups."""
        return await self.scripts.sweep(shard, limit, int(_DEAD_CONSUMER_S * 1000))

    async def repair(
        self, shard: int, word: str, place: str, members: Sequence[bytes]
    ) -> dict[str, int]:
        """Put right what is wrong with these members of a key; see lua/repair.lua.

        Returns what was done, and how often; empty is the rule. Redis serves nobody else meanwhile,
        so a few hundred members at most.
        """
        reply: Sequence[Any] = await self.scripts.repair(shard, word, place, members)
        done = zip(reply[::2], reply[1::2], strict=True)
        return {what.decode(): times for what, times in done}


def _nonce_seed() -> str:
    return secrets.token_hex(6)


def _claim(worker: str, count: int, lease_s: float, offer: Offer) -> tuple[Argument, ...]:
    lease_ms, seed = int(lease_s * 1000), _nonce_seed()
    return offer.pool, worker, count, lease_ms, seed, offer.slots, offer.told, *LANES


def _new(job: NewJob) -> tuple[Any, ...]:
    flat = [item for pair in job.fields().items() for item in pair]
    return job.id, job.tenant, job.pool, job.lane, int((job.deadline_s or 0) * 1e6), flat


def _ending(job: LeasedJob, seq: int, answer: Answer) -> tuple[Any, ...]:
    inline = not (job.stream and answer.status == 200) and len(answer.body) <= INLINE_RESULT_BYTES
    if inline:
        # The script puts the body behind it: it goes into the job's hash as well.
        frame = encode_head(job.id, seq, FrameKind.RESULT) + _THREE
        frame += _pack(answer.status) + _pack(answer.content_type)
    else:
        done = job.stream and answer.status == 200
        frame = encode(job.id, seq, FrameKind.DONE if done else FrameKind.ENDED, b"")
    fields = {
        "status": answer.status,
        "content_type": answer.content_type,
        "prompt_tokens": answer.prompt_tokens,
        "completion_tokens": answer.completion_tokens,
    }
    flat = [item for pair in fields.items() for item in pair]
    return answer.event, answer.error_code, frame, inline, answer.body, flat


def _shard(job_id: str) -> int:
    shard = shard_of(job_id)
    assert shard is not None, f"not a job id: {job_id!r}"
    return shard


def _by_shard(jobs: Iterable[LeasedJob]) -> dict[int, list[str]]:
    shards: dict[int, list[str]] = {}
    for job in jobs:
        shards.setdefault(job.shard, []).extend((job.id, job.nonce))
    return shards


def _lost(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        job_id.decode(): state.decode() for job_id, state in zip(flat[::2], flat[1::2], strict=True)
    }

"""The queue: everything that moves a job, and what the job's own keys say of it.

Gateways submit, watch and cancel; workers acquire, emit, renew and release. Every change is
one script call (scripts.py), fenced where a worker makes it. What is asked about many jobs at once
is in depths.py and listing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from shared.api.errors import QueueFull
from shared.platform.pipelined_connection import Argument
from shared.platform.redis_client import UNAVAILABLE
from shared.platform.servers import Servers
from shared.protocol import keys
from shared.protocol.job import Job, LeasedJob, NewJob, checked_shard, shard_in, shard_of
from shared.protocol.job_log import Entry, parse_segments
from shared.protocol.lanes import LANES
from shared.protocol.record import WHOLE, read_job, submission
from shared.protocol.scripts import Scripts
from shared.protocol.states import JobState
from shared.protocol.step_log import Step

# Redis' cmsgpack knows no `bin` type, so bytes travel to scripts in the old raw strings.
_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack

# An idle worker asks for work every few seconds; this is long past any pause of a live one.
_DEAD_CONSUMER_S = 600.0


UNKNOWN = ""


class SlotUpdate(NamedTuple):
    """Slots of a worker that jobs to come may have without a wait."""

    pool: str
    advertiser: str
    """`keys.advertiser`."""
    slots: int
    told: int | str
    """What it takes for left of its last offer: if less is left, jobs are on their way to it."""


NO_UPDATE = SlotUpdate("", "", 0, UNKNOWN)


class Repaired(NamedTuple):
    """What was put right in one way."""

    times: int
    ids: tuple[str, ...]
    """Of some of the jobs."""


class Fenced(Exception):
    """The worker's fencing token is over: before it writes again it must renew."""


class LogPart(NamedTuple):
    """A part of a job's log."""

    generation: int
    """Of the job's latest lease, which wrote the entries; 0 if there was none."""
    entries: list[Entry]


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a worker has to know to write."""

    fence_token: str
    lost: Mapping[str, str]
    """Jobs that are not its own any more: id -> state."""
    listeners: Mapping[str, tuple[str, bool]]
    """Of the others: id -> gateways that listen, whether somebody watches its events."""


class JobQueue:
    """All queues of a fleet. Raises redis' errors when Redis can't be reached."""

    def __init__(self, servers: Servers, *, shards: int) -> None:
        self.servers = servers
        self.scripts = Scripts(servers)
        self.shards = shards

    async def close(self) -> None:
        """End its own connections; the servers that were given stay open."""
        await self.scripts.close()

    def losses(self, shard: int) -> int:
        """How often its Redis was lost: what was known before the last time may be wrong."""
        return self.scripts.losses(shard)

    # --- the gateway's side ---

    async def submit(self, job: NewJob, max_depth: int) -> int:
        """Queue a job; returns how many wait in its lane and shard, 0 if it has a worker already.

        Raises QueueFull.
        """
        (depth,) = await self.submit_all(job.shard, [job], max_depth)
        if isinstance(depth, QueueFull):
            raise depth
        return depth

    async def submit_all(
        self, shard: int, jobs: Sequence[NewJob], max_depth: int
    ) -> list[int | QueueFull]:
        """Queue jobs of one shard in one call; for each what `submit` returns or raises."""
        reply = await self.scripts.submit(shard, *_batch(jobs, max_depth))
        return self.submitted(jobs, reply)

    def start_submit(
        self, shard: int, jobs: Sequence[NewJob], max_depth: int
    ) -> asyncio.Future[Any]:
        """`submit_all` without a coroutine (see Scripts.start); its result is for `submitted`."""
        batch = _batch(jobs, max_depth)
        return self.scripts.start("submit", shard, *batch)

    def submitted(self, jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[int | QueueFull]:
        """What the submit script says of these jobs."""
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
        await self.scripts.watch(checked_shard(job_id), job_id, gateway, sees)

    async def get(self, job_id: str) -> Job | None:
        """The job, whosever it is; the request's body is not read."""
        shard = shard_of(job_id)
        if shard is None:
            return None
        redis = self.servers.of(shard)
        return read_job(job_id, WHOLE, await redis.hmget(keys.job(shard, job_id), WHOLE))

    async def read_log(self, job_id: str, after: int) -> LogPart:
        """The job's log behind entry number `after`."""
        generation, *segments = await self.scripts.read(checked_shard(job_id), job_id, after)
        return LogPart(int(generation or 0), parse_segments(segments, after))

    async def entries(self, job_id: str, after: int) -> list[Entry]:
        """The job's log entries behind number `after`."""
        return (await self.read_log(job_id, after)).entries

    async def last_entry(self, job_id: str) -> Entry | None:
        """The log's last entry; None if it is empty."""
        _, *segments = await self.scripts.read(checked_shard(job_id), job_id, "")
        return parse_segments(segments[-1:])[-1] if segments else None

    async def ended(self, shard: int, job_ids: Iterable[str]) -> dict[str, str]:
        """Those of the shard's jobs that have ended: id -> state, `gone` if there is no record."""
        return _lost(await self.scripts.look(shard, job_ids))

    # --- the worker's side ---

    async def acquire(
        self, shard: int, pool: str, worker: str, count: int, lease_s: float
    ) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first; their leases end unless renewed."""
        offer = SlotUpdate(pool, keys.advertiser(worker, lease_s), 0, UNKNOWN)
        arguments = _claim(worker, count, lease_s, offer)
        return self.claimed(await self.scripts.acquire(shard, *arguments))[1]

    def acquire_command(
        self, shard: int, worker: str, count: int, lease_s: float, offer: SlotUpdate
    ) -> tuple[Argument, ...]:
        """What `acquire` sends; its reply is for `claimed`. The scripts must be ready.

        `offer`: slots that are free, `count` included. What nothing waits for is offered to jobs to
        come: `submit` then leases them, and tells the worker on its control channel.
        """
        return self.scripts.acquire_command(shard, *_claim(worker, count, lease_s, offer))

    def claimed(self, reply: Sequence[Any]) -> tuple[int, list[LeasedJob]]:
        """What is left on offer, and the jobs, in a reply of the acquire script."""
        now, left, *leased = reply
        return int(left), self.leased(now, *leased)

    def leased(self, now: bytes, fence_token: bytes, *jobs: Sequence[Any]) -> list[LeasedJob]:
        """Jobs as the scripts give them to a worker; `now` is Redis' time in us."""
        now_us = int(now)
        return [
            LeasedJob(
                id=(name := job_id.decode()),
                shard=shard_in(name),
                lease_id=lease_id.decode(),
                generation=int(generation),
                fence_token=fence_token.decode(),
                attempt=int(attempt),
                stream=stream == b"1",
                endpoint=endpoint.decode(),
                body=body,
                watchers=watchers.decode(),
                watched=watched == b"1",
                waited_s=max(0, now_us - int(created_us)) / 1e6,
            )
            for (
                job_id, lease_id, generation, attempt, created_us, stream, endpoint, body, watchers, watched,
            ) in jobs
        ]  # fmt: skip

    async def ring(self, shard: int, pool: str) -> None:
        """Wake one idle worker of the pool, of those that listen to the shard's server."""
        await self.servers.of(shard).rpush(keys.wake_ups(shard, pool), 1)

    async def emit(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        step: Step,
        *,
        again: bool = False,
        offer: SlotUpdate | None = None,
    ) -> dict[str, str]:
        """Log and publish one engine step; returns the endings that came too late: id -> state.

        `again`: the call may have been made before. `offer`: what the worker has to spare, if that
        has changed. Raises Fenced; then nothing has happened.
        """
        return self.emitted(
            await self.scripts.emit(shard, *_emission(worker, fence_token, step, again, offer))
        )

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, offer: SlotUpdate | None
    ) -> asyncio.Future[Any]:
        """`emit` without a coroutine (see Scripts.start); its result is for `emitted`."""
        emission = _emission(worker, fence_token, step, False, offer)
        return self.scripts.start_emit(shard, *emission)

    def emitted(self, reply: Sequence[bytes] | None) -> dict[str, str]:
        """What the emit script says; raises Fenced."""
        if reply is None:
            raise Fenced
        return _lost(reply)

    async def withdraw(self, pool: str, worker: str, lease_s: float) -> None:
        """The worker offers nothing any more."""
        pipeline = self.servers.pipeline()
        for shard in range(self.shards):
            pipeline.of(shard).zrem(keys.offers(shard, pool), keys.advertiser(worker, lease_s))
        await pipeline.execute()

    async def renew(
        self, shard: int, worker: str, fence_token: str, lease_s: float, jobs: Iterable[LeasedJob]
    ) -> Renewal:
        """Renew the leases of this worker's jobs, all that it has of the shard."""
        held = [word for job in jobs for word in (job.id, job.lease_id)]
        reply = await self.scripts.renew(
            shard, worker, fence_token, _unique(), int(lease_s * 1000), *held
        )
        fence_token, *words = [word.decode() for word in reply]
        lost, listeners = {}, {}
        for job_id, state, watchers, watched in zip(*(words[n::4] for n in range(4)), strict=True):
            if state:
                lost[job_id] = state
            else:
                listeners[job_id] = (watchers, watched == "1")
        return Renewal(fence_token, lost, listeners)

    async def reject_unreceived(
        self, pool: str, worker: str, known: Iterable[str], older_s: float
    ) -> dict[str, str]:
        """Hand back what was given to this worker so long ago and is not `known` to it.

        For after a lost connection: it may have missed what it was told. Returns new states. Where
        a server is away its leases run out.
        """
        states: dict[str, str] = {}
        packed = _pack(list(known))
        for shard in range(self.shards):
            with contextlib.suppress(*UNAVAILABLE):
                reply = await self.scripts.reject_unreceived(
                    shard, pool, worker, packed, int(older_s * 1000)
                )
                states |= _lost(reply)
        return states

    async def release(
        self, jobs: Iterable[LeasedJob], reason: str, *, blame: bool
    ) -> dict[str, str]:
        """Hand jobs back; returns their new states. `blame` counts the attempt against each.

        What can be handed back is, before an error is raised.
        """
        calls = [
            self.scripts.release(shard, reason, blame, held)
            for shard, held in _by_shard(jobs).items()
        ]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        states: dict[str, str] = {}
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            states |= _lost(reply)
        return states

    # --- upkeep ---

    async def reap(
        self,
        shard: int,
        lease_s: float,
        limit: int = 100,
        *,
        longest_pause_s: float | None = None,
    ) -> dict[str, str]:
        """Take back the jobs of workers that are silent for this long, and for their lease.

        `longest_pause_s`: the time between two calls by which Redis must have stood still, or was
        away; then silence counts from this call on. None: Redis was there all the time. Returns the
        jobs' new states.
        """
        pause_ms = "" if longest_pause_s is None else int(longest_pause_s * 1000)
        return _lost(await self.scripts.reap(shard, int(lease_s * 1000), limit, pause_ms))

    async def sweep(self, shard: int, limit: int = 100) -> int:
        """Take jobs that have expired out of the index, and dead workers out of the groups."""
        return await self.scripts.sweep(shard, limit, int(_DEAD_CONSUMER_S * 1000))

    async def repair(
        self, shard: int, word: str, place: str, members: Sequence[bytes]
    ) -> dict[str, Repaired]:
        """Put right what is wrong with these members of a key; see lua/repair.lua.

        Returns what was done; empty is the rule. Redis serves nobody else meanwhile, so a few
        hundred members at most.
        """
        reply: Sequence[Any] = await self.scripts.repair(shard, word, place, members)
        done = zip(reply[::3], reply[1::3], reply[2::3], strict=True)
        return {
            what.decode(): Repaired(times, tuple(ids.decode(errors="replace").split()))
            for what, times, ids in done
        }


def _batch(jobs: Iterable[NewJob], max_depth: int) -> tuple[Argument, ...]:
    packed: bytes = _pack([submission(job) for job in jobs])
    return packed, max_depth, _unique()


def _emission(
    worker: str, fence_token: str, step: Step, again: bool, offer: SlotUpdate | None
) -> tuple[Argument, ...]:
    parts = [part for message in step.messages for part in message]
    offered = offer or NO_UPDATE
    return worker, fence_token, int(again), step.places, step.frames, step.rest, *offered, *parts


def _unique() -> str:
    """Twelve characters: of a fencing token, or the beginning of lease ids."""
    return os.urandom(6).hex()


def _claim(worker: str, count: int, lease_s: float, offer: SlotUpdate) -> tuple[Argument, ...]:
    lease_ms, seed = int(lease_s * 1000), _unique()
    return offer.pool, worker, count, lease_ms, seed, offer.slots, offer.told, *LANES


def _by_shard(jobs: Iterable[LeasedJob]) -> dict[int, list[str]]:
    shards: dict[int, list[str]] = {}
    for job in jobs:
        shards.setdefault(job.shard, []).extend((job.id, job.lease_id))
    return shards


def _lost(flat: Sequence[bytes]) -> dict[str, str]:
    return {
        job_id.decode(): state.decode() for job_id, state in zip(flat[::2], flat[1::2], strict=True)
    }

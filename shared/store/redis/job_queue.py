"""The job queue: every change of a job, and what the job's own keys hold.

Gateways submit, watch and cancel; workers acquire, emit, renew and release. Every change is one
script call (scripts/), fenced where a worker makes it. Questions about many jobs at
once are in depths.py and listing.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, NamedTuple

from shared.job.advertised_slots import UNKNOWN, SlotUpdate
from shared.job.errors import (
    ConversationLocked,
    FlotillaError,
    IdempotencyKeyReused,
    NotFound,
    QueueFull,
    QuotaExceeded,
)
from shared.job.job import Job, LeasedJob, NewJob, checked_shard, shard_of
from shared.job.job_log import Entry, parse_segments, segments_behind
from shared.job.lanes import LANES
from shared.job.quotas import NO_QUOTAS, Quotas
from shared.job.record import WHOLE, DamagedRecord, read_job
from shared.job.states import JobState
from shared.store.redis import keys
from shared.store.redis.pipelined_connection import PipelinedConnection
from shared.store.redis.redis_client import UNAVAILABLE, ResponseError, is_wrong_type
from shared.store.redis.scripts import (
    abandon,
    acquire,
    cancel,
    cancel_unattended,
    delete,
    emit,
    expire,
    find_ended,
    find_keyed,
    read_log,
    reap,
    reclaim,
    reject_unreceived,
    release,
    renew,
    repair,
    restart,
    set_aside,
    submit,
    sweep,
    unwatch,
    watch,
)
from shared.store.redis.scripts.acquire import Acquired
from shared.store.redis.scripts.emit import Step
from shared.store.redis.scripts.renew import Renewal
from shared.store.redis.scripts.repair import Repaired
from shared.store.redis.scripts.runner import Scripts
from shared.store.redis.scripts.submit import SubmitStatus
from shared.store.redis.servers import Servers

log = logging.getLogger("flotilla.queue")

# An idle worker asks for work every few seconds; this is far longer than any pause of a live one.
_DEAD_CONSUMER_S = 600.0


class LogPart(NamedTuple):
    """A part of a job's log."""

    generation: int
    """Of the job's latest lease, which wrote the entries; 0 if there was none."""
    entries: list[Entry]
    more: bool = False
    """Others follow them."""
    size: int = 0
    """Bytes of the segments that hold them."""


class JoinedJob(NamedTuple):
    """The job that an earlier call with the same idempotency key has made."""

    id: str


SubmitReply = int | JoinedJob | FlotillaError
"""How many jobs wait, the job that the call joins, or why the job was refused: QueueFull,
IdempotencyKeyReused, QuotaExceeded, ConversationLocked or NotFound."""


class JobQueue:
    """All queues of a fleet. Methods raise redis' errors when Redis can't be reached."""

    def __init__(self, servers: Servers, *, shards: int, quotas: Quotas = NO_QUOTAS) -> None:
        """`quotas`: of each tenant in all shards together."""
        self.servers = servers
        self.scripts = Scripts(servers)
        self.shards = shards
        self.quotas = quotas.of_shard(shards)
        """Of each tenant in one shard."""
        self.reading_log = asyncio.Lock()
        """For log_parts.py: one part of one log at a time."""

    async def close(self) -> None:
        """Close the queue's own connections; `servers` stays open."""
        await self.scripts.close()

    def losses(self, shard: int) -> int:
        """How often the connection to the shard's server was lost: what a worker knew of its jobs
        before the last time may be wrong."""
        return self.scripts.losses(shard)

    # --- the gateway's side ---

    async def submit(self, job: NewJob, max_depth: int) -> int:
        """Queue a job; returns how many wait in its lane and shard, 0 if it has a worker already.

        Raises QueueFull if `max_depth` jobs wait there. The job has no idempotency key.
        """
        (depth,) = await self.submit_all(job.shard, [job], max_depth)
        if isinstance(depth, FlotillaError):
            raise depth
        assert isinstance(depth, int)
        return depth

    async def submit_all(
        self, shard: int, jobs: Sequence[NewJob], max_depth: int
    ) -> list[SubmitReply]:
        """Queue jobs of one shard in one call."""
        replies = await submit.call(
            self.scripts, shard, jobs, max_depth=max_depth, quotas=self.quotas
        )
        return [_submit_reply(job, *reply) for job, reply in zip(jobs, replies, strict=True)]

    def start_submit(
        self, shard: int, jobs: Sequence[NewJob], max_depth: int
    ) -> asyncio.Future[Any]:
        """`submit_all` without a coroutine (Scripts.start); the result is for `parse_submit`."""
        return submit.start(self.scripts, shard, jobs, max_depth=max_depth, quotas=self.quotas)

    def parse_submit(self, jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[SubmitReply]:
        """What `submit_all` would return."""
        replies = submit.parse(reply)
        return [_submit_reply(job, *reply) for job, reply in zip(jobs, replies, strict=True)]

    async def find_keyed(self, job: NewJob) -> JoinedJob | None:
        """The job that a call with this one's idempotency key has made; None if there is none.

        `submit` looks again. Raises IdempotencyKeyReused if that call had another body.
        """
        if job.idempotency is None:
            return None
        found = await find_keyed.call(self.scripts, job.shard, key=job.idempotency)
        reply = None if found is None else _submit_reply(job, *found)
        if isinstance(reply, FlotillaError):
            raise reply
        return reply if isinstance(reply, JoinedJob) else None

    async def cancel(self, job_id: str, tenant: str) -> JobState | None:
        """The state after the attempt; None if the tenant has no such job."""
        shard = shard_of(job_id)
        if shard is None:
            return None
        return await cancel.call(self.scripts, shard, job_id, tenant=tenant)

    async def delete(self, job_id: str) -> None:
        """Delete the record and the log of a job that has ended, before they expire."""
        await delete.call(self.scripts, checked_shard(job_id), job_id)

    async def watch(self, job_id: str, gateway: str, *, follow: bool) -> None:
        """Send the job's frames to this gateway from now on.

        `follow`: its client is shown the answer as it grows, so the job can't be started anew when
        its worker is lost.
        """
        shard = checked_shard(job_id)
        await watch.call(self.scripts, shard, job_id, gateway=gateway, follow=follow)

    async def unwatch(self, job_id: str, gateway: str) -> None:
        """The gateway has no client any more that follows the job.

        If no other gateway has one, the job is cancelled after its `keep_s`.
        """
        shard = checked_shard(job_id)
        await unwatch.call(self.scripts, shard, job_id, gateway=gateway)

    async def abandon(self, shard: int, gateway: str, limit: int = 100) -> int | None:
        """Unwatch all jobs of the shard for a gateway that is gone; returns how many it watched.

        `limit`: jobs in one call. None if the gateway receives frames there, so it is not gone.
        """
        watched = 0
        for name in await self.servers.of(shard).smembers(keys.pool_names(shard)):
            for lane in LANES:
                queue, after, more = f"{name.decode()}:{lane}", "", True
                while more:
                    done = await abandon.call(
                        self.scripts, shard, gateway=gateway, queue=queue, after=after, limit=limit
                    )
                    if done is None:
                        return None
                    after, more = done[0], bool(done[0])
                    watched += done[1]
        return watched

    async def get(self, job_id: str) -> Job | None:
        """The job, of whatever tenant; the request's body is not read. None if there is none."""
        shard = shard_of(job_id)
        if shard is None:
            return None
        try:
            values = await self.servers.of(shard).hmget(keys.job(shard, job_id), WHOLE)
        except ResponseError as error:
            values = error
        return await self.parse_record(job_id, WHOLE, values)

    async def request_body(self, job_id: str) -> bytes:
        """The body of the job's HTTP request; empty if there is no such job."""
        shard = checked_shard(job_id)
        body: bytes | None = await self.servers.of(shard).hget(keys.job(shard, job_id), "body")
        return body or b""

    async def stored_request(self, job_id: str) -> tuple[bytes, str]:
        """The body of a stored response's job, and where its input is (`StoredResponse.up_to`)."""
        shard = checked_shard(job_id)
        body, up_to = await self.servers.of(shard).hmget(keys.job(shard, job_id), "body", "upto")
        return body or b"", (up_to or b"").decode()

    async def parse_record(
        self, job_id: str, fields: Sequence[str], reply: Sequence[bytes | None] | Exception
    ) -> Job | None:
        """A Job from the reply to HMGET of these fields of its record; None if there is none.

        A record that can't be read is set aside; the job has failed then. `reply` may be the error
        of a key of the wrong type; other errors are raised.
        """
        try:
            if not isinstance(reply, Exception):
                return read_job(job_id, fields, reply)
            if not is_wrong_type(reply):
                raise reply
            damaged = DamagedRecord(job_id, "", b"")
        except DamagedRecord as error:
            damaged = error
        shard = checked_shard(job_id)
        log.error("set aside: %s", damaged)
        await set_aside.job(self.scripts, shard, job_id, field=damaged.field, value=damaged.value)
        key = keys.job(shard, job_id)
        try:
            return read_job(job_id, fields, await self.servers.of(shard).hmget(key, fields))
        except DamagedRecord:  # it changes as fast as it is read
            return None

    async def read_log(
        self,
        job_id: str,
        after: int,
        most_bytes: int | None = None,
        most_parsed: float = math.inf,
    ) -> LogPart:
        """The job's log behind entry number `after`; with `most_bytes` perhaps not all of it.

        `most_parsed`: the entries are left out if their segments have more bytes.
        """
        shard = checked_shard(job_id)
        generation, more, segments = await read_log.call(
            self.scripts, shard, job_id, after=after, most_bytes=most_bytes
        )
        behind = segments_behind(segments, after)
        size = sum(map(len, behind))
        if size > most_parsed:
            return LogPart(generation, [], more, size)
        damaged: list[bytes] = []
        entries = parse_segments(behind, after, damaged)
        if damaged:
            log.error("set aside: %d segments of the log of %s can't be read", len(damaged), job_id)
            for segment in damaged:
                await set_aside.segment(self.scripts, shard, job_id, value=segment)
        return LogPart(generation, entries, more, size)

    async def entries(self, job_id: str, after: int) -> list[Entry]:
        """The job's log entries behind number `after`."""
        return (await self.read_log(job_id, after)).entries

    async def last_entry(self, job_id: str) -> Entry | None:
        """The log's last entry; None if it is empty."""
        shard = checked_shard(job_id)
        _, _, segments = await read_log.call(self.scripts, shard, job_id, after=None)
        entries = parse_segments(segments[-1:])
        return entries[-1] if entries else None

    async def ended(self, shard: int, job_ids: Iterable[str]) -> dict[str, str]:
        """Those of the shard's jobs that have ended: id -> state, `gone` if there is no record."""
        return await find_ended.call(self.scripts, shard, job_ids)

    # --- the worker's side ---

    async def acquire(
        self, shard: int, pool: str, worker: str, count: int, lease_s: float
    ) -> list[LeasedJob]:
        """Lease at most `count` jobs, best lane first; their leases end unless renewed."""
        slots = SlotUpdate(pool, keys.advertiser(worker, lease_s), 0, UNKNOWN)
        acquired = await acquire.call(
            self.scripts, shard, worker=worker, count=count, lease_s=lease_s, slots=slots
        )
        return acquired.jobs

    def start_acquire(
        self,
        connection: PipelinedConnection,
        shard: int,
        worker: str,
        count: int,
        lease_s: float,
        slots: SlotUpdate,
    ) -> Coroutine[Any, Any, Acquired]:
        """`acquire` on a connection of the caller's: sent when this returns; await the reply.

        `slots`: the worker's free slots, `count` included. Those that no waiting job takes are
        advertised: `submit` leases jobs to them and sends these on the worker's control channel.
        The scripts must be ready (`prepare`).
        """
        return acquire.start_on(
            connection,
            self.scripts,
            shard,
            worker=worker,
            count=count,
            lease_s=lease_s,
            slots=slots,
        )

    async def prepare(self, shard: int) -> None:
        """Load the scripts on the shard's server if that was not done yet."""
        await self.scripts.ready(shard)

    async def push_wake_up(self, shard: int, wake_ups: str, kept_s: float = 0.0) -> None:
        """Wake one worker that reads this wake-up list; `kept_s`: deleted after that, 0: kept."""
        pipe = self.servers.of(shard).pipeline(transaction=False)
        pipe.rpush(wake_ups, 1)
        if kept_s:
            pipe.pexpire(wake_ups, int(kept_s * 1000))
        await pipe.execute()

    async def emit(
        self,
        shard: int,
        worker: str,
        fence_token: str,
        step: Step,
        *,
        repeated: bool = False,
        slots: SlotUpdate | None = None,
    ) -> dict[str, str]:
        """Store and publish one engine step; returns the results that came too late: id -> state.

        `repeated`: the call may have been made before. `slots`: what the worker advertises, if that
        has changed. Raises emit.Fenced; then nothing has happened.
        """
        return await emit.call(
            self.scripts,
            shard,
            worker=worker,
            fence_token=fence_token,
            step=step,
            repeated=repeated,
            slots=slots,
        )

    def start_emit(
        self, shard: int, worker: str, fence_token: str, step: Step, slots: SlotUpdate | None
    ) -> asyncio.Future[Any]:
        """`emit` without a coroutine; the result is for `emit.parse`. Does not connect."""
        return emit.start(
            self.scripts, shard, worker=worker, fence_token=fence_token, step=step, slots=slots
        )

    async def withdraw_slots(self, pool: str, worker: str, lease_s: float) -> None:
        """The worker advertises no slots any more."""
        pipeline = self.servers.pipeline()
        for shard in range(self.shards):
            pipeline.of(shard).zrem(keys.advertised(shard, pool), keys.advertiser(worker, lease_s))
        await pipeline.execute()

    async def renew(
        self, shard: int, worker: str, fence_token: str, lease_s: float, jobs: Iterable[LeasedJob]
    ) -> Renewal:
        """Renew the leases of all jobs that the worker holds in the shard."""
        return await renew.call(
            self.scripts, shard, worker=worker, fence_token=fence_token, lease_s=lease_s, jobs=jobs
        )

    async def reject_unreceived(
        self, pool: str, worker: str, received: Iterable[str], older_than_s: float
    ) -> dict[str, str]:
        """Give up jobs that were leased to this worker so long ago and are not among `received`.

        For after a lost connection, on which messages to the worker may have been lost. Returns the
        new states. Where a server is away the leases run out.
        """
        states: dict[str, str] = {}
        ids = list(received)
        for shard in range(self.shards):
            with contextlib.suppress(*UNAVAILABLE):
                states |= await reject_unreceived.call(
                    self.scripts,
                    shard,
                    pool=pool,
                    worker=worker,
                    received=ids,
                    older_than_s=older_than_s,
                )
        return states

    async def release(
        self, jobs: Iterable[LeasedJob], reason: str, *, blame: bool
    ) -> dict[str, str]:
        """Give up jobs; returns their new states. `blame` counts the attempt against each.

        Jobs of the servers that can be reached are given up before an error is raised.
        """
        by_shard: dict[int, list[LeasedJob]] = {}
        for job in jobs:
            by_shard.setdefault(job.shard, []).append(job)
        calls = [
            release.call(self.scripts, shard, held, reason=reason, blame=blame)
            for shard, held in by_shard.items()
        ]
        replies = await asyncio.gather(*calls, return_exceptions=True)
        states: dict[str, str] = {}
        for reply in replies:
            if isinstance(reply, BaseException):
                raise reply
            states |= reply
        return states

    async def restart(self, job: LeasedJob, reason: str, code: str = "worker_lost") -> str:
        """Give up a job whose log the engine can't continue.

        Returns its new state: it is queued, with an empty log, or it has failed, as a client may
        have seen what was generated, with the error `code`. Empty if the worker had lost the job
        already.
        """
        return await restart.call(self.scripts, job, reason=reason, code=code) or ""

    # --- maintenance ---

    async def expire(self, shard: int, limit: int = 100) -> list[str]:
        """End at most `limit` jobs whose deadline has passed; returns their ids."""
        return await expire.call(self.scripts, shard, limit=limit)

    async def cancel_unattended(self, shard: int, limit: int = 100) -> tuple[int, list[str]]:
        """Cancel jobs that no client has followed for too long: how many were due, and their ids.

        At most `limit` were looked at; some of them may have ended, or be followed again.
        """
        return await cancel_unattended.call(self.scripts, shard, limit=limit)

    async def reap(
        self,
        shard: int,
        lease_s: float,
        limit: int = 100,
        *,
        longest_pause_s: float | None = None,
    ) -> dict[str, str]:
        """Take the jobs of workers that have been silent for this long, and for their own lease.

        `longest_pause_s`: see scripts/reap.py. Returns the jobs' new states.
        """
        return await reap.call(
            self.scripts, shard, lease_s=lease_s, limit=limit, longest_pause_s=longest_pause_s
        )

    async def reclaim(
        self, shard: int, worker: str, limit: int = 100, *, heartbeat: str = ""
    ) -> dict[str, str]:
        """Take the jobs of a worker whose connection to the shard's server is gone, or which still
        has the heartbeat channel `heartbeat`.

        Nothing is taken if it has a connection again, or another heartbeat. Returns the jobs' new
        states.
        """
        return await reclaim.call(self.scripts, shard, worker, heartbeat=heartbeat, limit=limit)

    async def sweep(
        self, shard: int, limit: int = 100, *, dead_consumer_s: float = _DEAD_CONSUMER_S
    ) -> int:
        """Remove expired jobs from the index and dead workers from the consumer groups."""
        return await sweep.call(self.scripts, shard, limit=limit, dead_consumer_s=dead_consumer_s)

    async def repair(
        self, shard: int, word: str, rest: str, members: Sequence[bytes]
    ) -> dict[str, Repaired]:
        """Put right what is wrong with these members of a key; see scripts/repair.lua.

        Returns what was done; usually nothing. Redis serves no other call meanwhile, so pass a few
        hundred members at most.
        """
        return await repair.call(self.scripts, shard, word=word, rest=rest, members=members)


def _submit_reply(job: NewJob, status: SubmitStatus, waiting: int, job_id: str) -> SubmitReply:
    if status is SubmitStatus.FULL:
        return QueueFull(f"{waiting} jobs wait for {job.model!r} already; try again later.")
    if status is SubmitStatus.JOINED:
        return JoinedJob(job_id)
    if status is SubmitStatus.REUSED:
        return IdempotencyKeyReused(
            f"This Idempotency-Key was sent with another body, for {job_id}. Send a new key."
        )
    if status in _QUOTAS:
        return QuotaExceeded.of(_QUOTAS[status], waiting)
    if status is SubmitStatus.LOCKED:
        return ConversationLocked(
            "Another request has changed this conversation since this one has read it; try again."
        )
    if status is SubmitStatus.GONE:
        return NotFound("This conversation was deleted, or has expired.")
    return waiting


_QUOTAS = {SubmitStatus.JOBS: "jobs", SubmitStatus.BYTES: "bytes"}

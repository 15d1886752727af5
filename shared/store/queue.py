"""The queue of jobs: every change of a job is one call of a script (scripts/).

A method packs the arguments of its script and parses the reply. What a worker writes is fenced by
the log itself: each entry's id begins with the generation of the worker's lease, and Redis refuses
one that is not above the last entry (shared/job/log.py). All methods raise StoreError; after a
TRANSIENT one the same call may be made again.
"""

from __future__ import annotations

import asyncio
import json
from asyncio import Future
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache
from itertools import chain
from math import inf
from typing import Any, Final, Literal, NamedTuple

import msgpack

from shared.job.errors import (
    ConversationLocked,
    FlotillaError,
    IdempotencyKeyReused,
    NotFound,
    QueueFull,
    QuotaExceeded,
    RedisMemoryFull,
    RedisUnavailable,
    TooManyWaiting,
)
from shared.job.job import (
    NO_ORIGIN,
    Job,
    NewJob,
    Origin,
    Share,
    checked_shard,
    shard_in,
    shard_of,
)
from shared.job.log import ENDS, START, Entry, Item, Journal, Position, pack_entry, read_entries
from shared.job.record import WHOLE, ResponseInfo, pack, pack_headers, read_job
from shared.job.result import JobResult, piece_field
from shared.job.rules import (
    CLIENT_LANES,
    EXPECTED_COST,
    NO_QUOTAS,
    PlacementRules,
    Quotas,
    ShareRules,
)
from shared.job.states import JobState
from shared.job.trace_context import trace_id
from shared.platform.tasks import run_together
from shared.store import keys
from shared.store.connection import Argument
from shared.store.scripts import PIECE_BYTES, Scripts
from shared.store.servers import Servers

_PIECES_AT_ONCE: Final = 4
_MOST_ENDED: Final = 1_000_000
"""Entries of the stream of ended jobs in a shard, where no maintenance process reads it."""
_UNSUBMITTED_MS: Final = 60_000
"""A body without a job is kept for so long."""
_SOME_WORKERS: Final = 64
"""Idle workers whose room is read."""
LOG_LOST: Final = Position(-1, -1)
"""In place of a log's last entry: Redis has lost the log."""


class JoinedJob(NamedTuple):
    """The job that an earlier call with the same idempotency key has made."""

    id: str


_JobWords = tuple[str, *tuple[Argument, ...]]
"""The id of a job, and what belongs to it."""
SubmitReply = int | JoinedJob | FlotillaError
"""How many jobs wait, the job that the call joins, or why the job was refused."""


class Fenced(Exception):
    """The caller owns the batch no more."""


class Control(IntEnum):
    """A control message to a worker: an array of the kind and its arguments."""

    CLAIM = 0
    """So many jobs wait for it."""
    YIELD = 1
    """So many of its jobs of the lane flex should be handed over: better ones wait."""
    LOST = 2
    """Flat id and generation of jobs that were taken away from it: a hint, as its next entry of
    them is refused anyway."""
    OPERATE = 3
    """An operator call: its id, the action's name, and the options as JSON."""


def parse_control(message: bytes) -> tuple[Control, Sequence[Any]]:
    """Kind and arguments. Raises ValueError or msgpack's errors if the message is malformed."""
    kind, *arguments = msgpack.unpackb(message, raw=True)
    return Control(kind), arguments


def pack_operation(operation_id: str, action: str, options: bytes) -> bytes:
    """The control message of an operator call; `options` are JSON."""
    return pack((Control.OPERATE, operation_id, action, options))


class HeldJob(NamedTuple):
    """A job as a worker gets it: the request, and the entry of its claim in the log."""

    id: str
    generation: int
    """Of all entries that this worker writes."""
    number: int
    """Of the claim's entry. Above 1 there are entries of earlier attempts."""
    attempt: int
    """How often it was claimed."""
    stream: bool
    endpoint: str
    body: bytes
    body_bytes: int
    """Of a large body, which `Queue.body` reads; 0: `body` has all of it."""
    watchers: str
    """The gateways that get its frames, with spaces between them."""
    watched: bool
    """A client reads the job's events while the answer is made."""
    waited_s: float
    """Seconds from submit to the claim, by Redis' clock."""
    origin: Origin = NO_ORIGIN
    tenant: str = ""
    share: Share = Share("", 1.0, 0.0)
    stays: bool = False
    """It makes no room for jobs of better lanes: it has a deadline that goes on if it has to wait
    again, or was claimed as the turn of its lane."""
    blame: int = 0
    """How many workers in a row it may have ended: those that were lost without progress; 1 at
    least if another worker has had it before."""
    known_blocks: int | None = None
    """The leading blocks of its prompt that its worker may hold (rules.py); None: no prefix
    of it is noted."""

    @property
    def shard(self) -> int:
        """The shard that holds its keys."""
        return shard_in(self.id)

    @property
    def log_fields(self) -> dict[str, str | int]:
        """What log lines about this attempt have."""
        fields: dict[str, str | int] = {"job_id": self.id, "attempt": self.attempt}
        if self.origin.request_id:
            fields["request_id"] = self.origin.request_id
        if self.origin.traceparent:
            fields["trace_id"] = trace_id(self.origin.traceparent)
        return fields


NOT_TOLD = ("", 0)
"""`Step.idle` of a worker that has no room, or does not tell."""


@dataclass(slots=True)
class Step:
    """What a worker sends at once: the output of one engine step, and more after a lost connection.

    The id of an entry is `str(Position(...))`.
    """

    entries: list[Any] = field(default_factory=list)
    """Flat job, id, entry."""
    restarts: list[Any] = field(default_factory=list)
    """Flat job, id, error code: answers that begin anew. If a client may have seen output of the
    job it fails with this code, and is refused."""
    ends: list[Any] = field(default_factory=list)
    """Of `pack_end`."""
    acknowledged: list[Any] = field(default_factory=list)
    """After a lost connection, of each job that the worker has: flat job, generation, number of the
    last entry that was acknowledged. The call repeats what was in flight, unchanged."""
    messages: dict[str, list[bytes]] = field(default_factory=dict)
    """Gateway -> the frames that it gets, of `entries` and `restarts`."""
    idle: tuple[str, int] = NOT_TOLD
    """A pool, and how many more of its jobs the worker could claim now."""


class Emitted(NamedTuple):
    """What became of a Step."""

    refused: Mapping[str, str]
    """Jobs that are not the worker's (any more) -> their state, `gone` without a record."""
    short: Mapping[str, int]
    """Jobs whose log Redis has lost acknowledged entries of -> number of the last one that is
    there. Nothing of them was appended: the worker sends what is missing again."""
    must_claim: bool
    """Jobs wait, or the worker has not told its room; else it is noted as idle."""
    version: bytes
    """Of the followers: for the next call, unless a job in `followers` is unknown."""
    followers: Mapping[str, tuple[str, bool]]
    """Jobs whose followers have changed -> `watchers` and `watched`, as in HeldJob."""


class Watched(NamedTuple):
    """A job as it is watched."""

    state: JobState
    holder: int | None
    """Generation of the worker that has it; None: no worker has it."""
    has_log: bool
    """It was claimed some time."""
    start: int = 0
    """The answer has begun anew with the entry of this number: what is before it is void. After
    `follow` it does so no more. 0: it never has."""


class Ticked(NamedTuple):
    """What upkeep has done in a shard."""

    more: bool
    """More is due: call again at once."""
    lost: Sequence[str]
    """Workers whose connection is gone, or that stand still."""
    taken: Mapping[str, str]
    """Jobs that were taken away -> their new states."""


class Room(NamedTuple):
    """What may be kept in a shard, in bytes of the ledger (scripts/common/kept.lua)."""

    quota: float = inf
    """Of one tenant."""
    mark: float = inf
    """When so many were accepted, nothing new is accepted of those who keep most."""
    most: float = inf
    """When so many were accepted, nothing new is accepted."""
    largest: float = 0
    """What the tenant keeps that keeps most."""


NO_ROOM: Final = (b"quota", b"memory")
"""Statuses of scripts: what `no_room` makes an error of."""


class FreeRoom(NamedTuple):
    """Of one pool, over all shards."""

    room: int
    """For so many jobs idle workers have room."""
    waiting: int
    """Jobs that wait, which will take it."""


def pack_end(
    job: HeldJob,
    number: int,
    journal: Journal,
    items: Sequence[Item] | None,
    tokens: int,
    result: JobResult,
) -> tuple[Any, ...]:
    """How a worker ends a job with its last entry, which has this number and the output of the last
    step. `tokens`: all of the answer."""
    state = result.state.value
    streamed = job.stream and result.status == 200 and not result.body
    entry = pack_entry(journal, items, (state, tokens, int(streamed)))
    inline, frame_entry = result.inline, b""
    # A frame has no room for headers: the gateway reads these from the record, with the body.
    if not streamed and not result.headers and len(inline) == len(result.body):
        # The script appends the body: it is stored in the record as well.
        answer = (state, tokens, 0, result.status, result.content_type, inline)
        whole = pack_entry(journal, items, answer)
        frame_entry = whole[: len(whole) - len(inline)]
    response = ResponseInfo(
        result.status, result.content_type, result.prompt_tokens, result.completion_tokens,
        len(result.body), result.cached_tokens,
    )  # fmt: skip
    return (
        job.id, f"{job.generation}-{number}", entry, state, result.error_code, frame_entry, inline,
        response.pack(), pack_headers(result.headers) if result.headers else "",
        int(result.first_output_s * 1e6), result.prompt_tokens, result.cached_tokens,
        result.completion_tokens, len(result.body),
    )  # fmt: skip


class Queue:
    """The jobs of a fleet, in shards; a job's id names its shard."""

    def __init__(
        self,
        servers: Servers,
        *,
        quotas: Quotas = NO_QUOTAS,
        share_rules: ShareRules = ShareRules(),  # noqa: B008
        placement: PlacementRules = PlacementRules(),  # noqa: B008
    ) -> None:
        """`quotas`: of each tenant in all shards together."""
        self.servers = servers
        self.shards = servers.shards
        self.quotas = quotas.of_shard(self.shards)
        """Of each tenant in one shard."""
        self.rooms = [Room(self.quotas.kept_bytes or inf)] * self.shards
        """What may be kept in each shard; `Health` looks at it."""
        self.share_rules = share_rules
        self.placement = placement
        self._scripts = [Scripts(servers.of(shards[0])) for shards in servers.groups]

    def scripts(self, shard: int) -> Scripts:
        """Those of the shard's server."""
        return self._scripts[shard % len(self._scripts)]

    async def close(self) -> None:
        """Close the queue's own connections; `servers` stays open."""
        for scripts in self._scripts:
            await scripts.close()

    async def connect(self, shard: int) -> None:
        """Connect to the shard's server, unless connected: `emit` never does."""
        await self.scripts(shard).connect()

    def give_up(self, shard: int, reason: str) -> None:
        """End the connection to the shard's server; calls in flight fail."""
        self.scripts(shard).connection.give_up(reason)

    def losses(self, shard: int) -> int:
        """How often the connection to the shard's server was lost: what was in flight may have been
        carried out, and Redis may have lost its last writes."""
        return self.scripts(shard).connection.losses

    async def run(self, name: str, shard: int, *arguments: Argument) -> Any:
        """The reply of a script."""
        return await self.scripts(shard).run(name, shard, arguments)

    async def _run_by_shard(
        self, name: str, jobs: Iterable[_JobWords], *before: Argument
    ) -> list[tuple[list[_JobWords], Any]]:
        """Call a script in each shard with its part of these jobs; the parts and the replies."""
        by_shard: dict[int, list[_JobWords]] = {}
        for job in jobs:
            by_shard.setdefault(checked_shard(job[0]), []).append(job)
        replies = await run_together(
            *(self.run(name, shard, *before, *chain(*part)) for shard, part in by_shard.items())
        )
        return list(zip(by_shard.values(), replies, strict=True))

    # --- the gateway's side ---

    def submit(
        self,
        shard: int,
        jobs: Sequence[NewJob],
        max_depth: int,
        owner: tuple[str, int] | None = None,
    ) -> Future[Any]:
        """Queue jobs of one shard; the result is for `parse_submit`.

        A job that is there already is left as it is, so after StoreUnavailable, also by scripts
        that Redis has lost, this may be called again. `max_depth`: jobs that may wait in a lane.
        `owner`: the batch whose lines they are, and its owner's epoch.
        """
        arguments = (
            pack([pack_job(job) for job in jobs]), max_depth, self.share_rules.lift,
            self.quotas.waiting, *self.rooms[shard], *(owner or ()),
        )  # fmt: skip
        large = [job for job in jobs if len(job.body) > PIECE_BYTES]
        if large:
            return asyncio.ensure_future(self._submit_large(shard, large, arguments))
        return self.scripts(shard).start("submit", shard, arguments)

    async def _submit_large(
        self, shard: int, large: Sequence[NewJob], arguments: tuple[Argument, ...]
    ) -> Any:
        for job in large:
            await self._store_body(job)
        return await self.run("submit", shard, *arguments)

    async def _store_body(self, job: NewJob) -> None:
        """Write a large body, if the tenant may keep it. Called again it writes the same."""
        scripts, key, body = self.scripts(job.shard), keys.of("body", job.shard, job.id), job.body

        async def store(number: int) -> None:
            begin = number * PIECE_BYTES
            await scripts.command("HSET", key, number, body[begin : begin + PIECE_BYTES])

        arguments = (job.id, job.tenant, len(body), _UNSUBMITTED_MS, *self.rooms[job.shard])
        if await self.run("store_body", job.shard, *arguments):
            await _for_pieces(len(body), store)

    @staticmethod
    def parse_submit(jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[SubmitReply]:
        """What became of each job. Raises Fenced if the batch has another owner: nothing has
        happened."""
        if not reply:
            raise Fenced("another process owns the batch")
        return [
            value if status in (b"ok", b"exists") else _refusal(job, status, value)
            for job, status, value in zip(jobs, reply[::2], reply[1::2], strict=True)
        ]

    async def find_keyed(self, job: NewJob) -> JoinedJob | None:
        """The job that a call with this one's idempotency key has made; None if there is none.

        `submit` looks again. Raises IdempotencyKeyReused if that call had another body.
        """
        key = job.idempotency
        if key is None:
            return None
        found = await self.run("find_keyed", job.shard, key.name, key.body_hash)
        reply = None if found is None else _refusal(job, *found)
        if isinstance(reply, FlotillaError):
            raise reply
        return reply if isinstance(reply, JoinedJob) else None

    async def get(self, *job_ids: str) -> list[Job | None]:
        """The jobs, of whatever tenants, without the bodies of their requests; None: no such."""
        pipeline, found = self.servers.pipeline(), []
        for job_id in job_ids:
            if (shard := shard_of(job_id)) is not None:
                found.append(job_id)
                pipeline.of(shard).hmget(keys.job(shard, job_id), WHOLE)
        replies = zip(found, await pipeline.execute(), strict=True) if found else ()
        jobs = {job_id: read_job(job_id, WHOLE, values) for job_id, values in replies}
        return [jobs.get(job_id) for job_id in job_ids]

    async def stored_request(self, job_id: str) -> tuple[bytes, str]:
        """The body of the job's HTTP request, empty if there is no such job; of a stored response
        also where its input is (`StoredResponse.up_to`)."""
        shard = checked_shard(job_id)
        body, n_bytes, up_to = await self.servers.of(shard).hmget(
            keys.job(shard, job_id), "body", "body_bytes", "upto"
        )
        if n_bytes:
            body = await self.body(job_id, int(n_bytes))
        return body or b"", (up_to or b"").decode()

    async def request_bytes(self, job_id: str) -> int:
        """The size of the body that `stored_request` has; 0: it is not kept."""
        shard = checked_shard(job_id)
        pipeline = self.servers.pipeline()
        pipeline.of(shard).hget(keys.job(shard, job_id), "body_bytes")
        pipeline.of(shard).hstrlen(keys.job(shard, job_id), "body")
        large, n_bytes = await pipeline.execute()
        return int(large or n_bytes)

    async def body(self, job_id: str, n_bytes: int) -> bytes | None:
        """A large body of a request, of so many bytes; None if the job is gone."""
        shard = checked_shard(job_id)
        scripts, key = self.scripts(shard), keys.of("body", shard, job_id)
        pieces = await _for_pieces(n_bytes, lambda number: scripts.command("HGET", key, number))
        return None if None in pieces else b"".join(pieces)

    async def piece(self, job_id: str, number: int) -> bytes | None:
        """A piece of the stored answer; None if it is not there."""
        shard, field = checked_shard(job_id), piece_field(number)
        piece: bytes | None = await self.servers.of(shard).hget(keys.job(shard, job_id), field)
        return piece

    async def read(self, job_id: str, after: Position, most: int) -> list[Entry]:
        """At most so many entries of the job's log, from `after` on: that one is the first, or
        Redis has lost it. From the first one on if `after` is START.

        Raises ValueError or msgpack's errors if an entry is damaged.
        """
        shard = checked_shard(job_id)
        log, first = keys.log(shard, job_id), "-" if after == START else str(after)
        scripts = self.scripts(shard)
        return read_entries(await scripts.command("XRANGE", log, first, "+", "COUNT", most))

    async def watch(self, job_id: str, gateway: str, *, follow: bool) -> Watched | None:
        """Send the job's frames to this gateway from now on, unless it has ended; None: no such.

        `follow`: its client is shown the answer as it grows, so it can't begin anew.
        """
        reply = await self.run("watch", checked_shard(job_id), job_id, gateway, int(follow))
        if reply is None:
            return None
        state, holder, has_log, start = reply
        generation = int(holder) if holder else None
        return Watched(JobState(state.decode()), generation, bool(has_log), start)

    async def unwatch(self, job_id: str, gateway: str) -> None:
        """The gateway has no client any more that follows the job.

        If no other gateway has one, the job is cancelled after its `keep_s`.
        """
        await self.run("unwatch", checked_shard(job_id), job_id, gateway)

    async def positions(self, shard: int, job_ids: Sequence[str]) -> list[Position | None]:
        """The last entries of these logs: START if there is none yet, LOG_LOST, None: no such job.

        Hundreds cost about 6 us each.
        """
        return [
            None if last is None else Position.read(last) if last else LOG_LOST
            for last in await self.run("positions", shard, *job_ids)
        ]

    async def ended(self, shard: int, job_ids: Sequence[str]) -> dict[str, str]:
        """Those of the shard's jobs that have ended -> their states, `gone` without a record."""
        pipeline, found = self.servers.pipeline(), {}
        for job_id in job_ids:
            pipeline.of(shard).hget(keys.job(shard, job_id), "state")
        for job_id, state in zip(job_ids, await pipeline.execute(), strict=True):
            name = (state or b"gone").decode(errors="replace")
            if name not in (JobState.QUEUED, JobState.IN_PROGRESS):
                found[job_id] = name if name in ENDS or not state else JobState.FAILED.value
        return found

    async def cancel(self, tenant: str, *job_ids: str) -> list[JobState | None]:
        """The states after the attempt; None if the tenant has no such job."""
        known = [job_id for job_id in job_ids if shard_of(job_id) is not None]
        states = await self._take_away("cancelled", "cancelled", tenant, [(i, "") for i in known])
        return [JobState(states[i]) if states.get(i) else None for i in job_ids]

    async def delete(self, *job_ids: str) -> None:
        """Delete the records and the logs of jobs that have ended, before they expire."""
        await self._run_by_shard("delete", ((job_id,) for job_id in job_ids))

    async def _take_away(
        self, event: str, why: str, tenant: str, jobs: Iterable[tuple[str, int | str]]
    ) -> dict[str, str]:
        found = await self._run_by_shard("take_away", jobs, event, why, tenant)
        return {
            job_id: state.decode()
            for part, states in found
            for (job_id, *_), state in zip(part, states, strict=True)
        }

    # --- the worker's side ---

    async def claim(
        self,
        shard: int,
        pool: str,
        worker: str,
        *,
        room: int,
        known: int,
        most: int,
        yieldable: int = 0,
        blame: int = 0,
        at_home: bool = True,
        expected_cost: float = EXPECTED_COST,
        charges: Mapping[tuple[str, str], float] | None = None,
    ) -> list[HeldJob] | None:
        """At most `most` jobs of a pool whose turn it is. None: Redis has more jobs of this worker
        than it knows, `known`, as a reply was lost: it has to `reconcile` first.

        With fewer jobs than it has room for it is noted as idle. `yieldable`: how many jobs of the
        lane flex it would hand over for better ones. `blame`: the most that one of its jobs has
        which has no output yet. Where several tenants wait in a lane, the one
        with the lowest level comes first, and is charged `expected_cost` for each job, over its
        weight (rules.py). `charges`: (lane, tenant) -> what is added to the level. `at_home`:
        the shard is one of its home shards; of another one it gets jobs whose workers are full.
        """
        flat = [word for account, cost in (charges or {}).items() for word in (*account, cost)]
        rules = self.placement
        reply = await self.run(
            "claim", shard, pool, worker, room, known, most, yieldable, expected_cost,
            self.share_rules.half_life_us, rules.window, int(rules.overtake_s * 1e6),
            int(rules.patience_s * 1e6), pack(flat) if flat else b"", blame, int(at_home),
        )  # fmt: skip
        return None if reply is None else _held_jobs(*reply)

    async def reconcile(self, shard: int, worker: str, known: Iterable[str]) -> dict[str, str]:
        """Hand over the jobs of the shard that this worker has and does not know: id -> state."""
        return _states(await self.run("reconcile", shard, worker, *known))

    def emit(self, shard: int, worker: str, version: bytes, step: Step) -> Future[Any]:
        """Store and publish a step; the result is for `parse_emit`.

        One call for a shard at a time. Does not connect, and nothing below repeats it: raises
        StoreUnavailable without a connection.
        """
        packed = pack((step.acknowledged, step.restarts, step.entries, step.ends, *step.idle))
        flat = [
            word
            for gateway, frames in step.messages.items()
            for word in (gateway, b"".join(frames))
        ]
        return self.scripts(shard).send("emit", shard, (worker, version, packed, *flat))

    @staticmethod
    def parse_emit(reply: Sequence[Any]) -> Emitted:
        """What became of a step."""
        refused, short, must_claim, version, *followers = reply
        return Emitted(
            _states(refused),
            {job_id.decode(): n for job_id, n in zip(short[::2], short[1::2], strict=True)},
            bool(must_claim),
            version,
            {
                job_id.decode(): (watchers.decode(), watched == b"1")
                for job_id, watchers, watched in zip(
                    followers[::3], followers[1::3], followers[2::3], strict=True
                )
            },
        )

    async def store_piece(self, job: HeldJob, number: int, piece: bytes) -> bool:
        """Store a piece of the job's answer, before its end; False if the worker has lost it."""
        field = piece_field(number)
        return bool(await self.run("store_piece", job.shard, job.id, job.generation, field, piece))

    async def give_back(
        self, jobs: Iterable[HeldJob], event: Literal["handed_over", "requeued"], reason: str
    ) -> dict[str, str]:
        """Give jobs up: those that were the worker's own still -> their new states.

        One that is handed over keeps its place in its line. One that is requeued goes to the front
        if its attempt has added to the answer; else that counts against it.
        """
        states = await self._take_away(
            event, reason, "", [(job.id, job.generation) for job in jobs]
        )
        return {job_id: state for job_id, state in states.items() if state}

    async def heartbeat(self, shard: int, worker: str, lease_s: float = 2.0) -> None:
        """Keep all jobs of a worker in the shard for so long from now on."""
        await self.run("heartbeat", shard, worker, int(lease_s * 1e6))

    async def free_room(self, pool: str, *, but_of: str) -> FreeRoom:
        """The room of all idle workers but one, in their home shards. Raises StoreError if a
        server is away."""
        pipeline, waiting, room = self.servers.pipeline(), 0, 0
        for shard in range(self.shards):
            idle = keys.of("idle", shard, pool)
            pipeline.of(shard).zrange(idle, -_SOME_WORKERS, -1, withscores=True)
            for lane in CLIENT_LANES:
                pipeline.of(shard).zcard(keys.of("waiting", shard, pool, lane))
        for reply in await pipeline.execute():
            if isinstance(reply, list):
                room += sum(max(0, int(score)) for name, score in reply if name.decode() != but_of)
            else:
                waiting += reply
        return FreeRoom(room, waiting)

    async def given_back(self, pool: str) -> list[int]:
        """How many jobs wait that are claimed first, by shard. Raises StoreError."""
        pipeline = self.servers.pipeline()
        for shard in range(self.shards):
            pipeline.of(shard).zcard(keys.of("first", shard, pool))
        return list(await pipeline.execute())

    # --- upkeep ---

    async def tick(self, shard: int) -> Ticked:
        """Requeue the jobs of lost workers, expire jobs past their deadline, cancel jobs without a
        watcher, and requeue jobs that are in no line. Called seven times a second a shard."""
        more, lost, *taken = await self.run("tick", shard)
        names = [worker.decode(errors="replace") for worker in lost]
        return Ticked(bool(more), names, _states(taken))

    async def sweep(self, shard: int, limit: int, most_ended: int = _MOST_ENDED) -> int:
        """Take what has expired, at most `limit`, off indexes and ledger; and of the stream of what
        has ended about what is more than `most_ended` entries.

        Returns how many were looked at: with `limit` there may be more.
        """
        return int(await self.run("sweep", shard, limit, most_ended))


async def _for_pieces(n_bytes: int, call: Callable[[int], Awaitable[Any]]) -> list[Any]:
    """Call with the number of each piece of a body, a few at a time; the results."""
    numbers, found = range(-(-n_bytes // PIECE_BYTES)), []
    for first in range(0, len(numbers), _PIECES_AT_ONCE):
        found += await run_together(*map(call, numbers[first : first + _PIECES_AT_ONCE]))
    return found


def _states(flat: Sequence[bytes]) -> dict[str, str]:
    """Job -> state."""
    return {
        job_id.decode(errors="replace"): state.decode()
        for job_id, state in zip(flat[::2], flat[1::2], strict=True)
    }


def _held_jobs(now_us: bytes, *jobs: Sequence[Any]) -> list[HeldJob]:
    now = int(now_us)
    return [
        HeldJob(
            id=job_id.decode(),
            generation=int(generation),
            number=number,
            attempt=attempt,
            stream=stream == b"1",
            endpoint=endpoint.decode(),
            body=body,
            body_bytes=int(body_bytes or 0),
            watchers=watchers.decode(),
            watched=watched == b"1",
            waited_s=max(0, now - int(created_us)) / 1e6,
            origin=Origin.read(origin) if origin else NO_ORIGIN,
            tenant=tenant.decode(),
            share=_share(lane, weight, charged),
            stays=bool(stays),
            blame=blame,
            known_blocks=known_blocks[0] if known_blocks else None,
        )
        for (
            job_id, generation, number, attempt, created_us, stream, endpoint, body, body_bytes,
            watchers, watched, origin, tenant, lane, weight, charged, stays, blame,
            *known_blocks,
        ) in jobs
    ]  # fmt: skip


@lru_cache(maxsize=1024)  # most jobs have the same one
def _share(lane: bytes, weight: bytes, charged: bytes) -> Share:
    return Share(lane.decode(), float(weight or 1), float(charged or 0))


def _refusal(job: NewJob, status: bytes, value: Any) -> SubmitReply:
    """Why nothing was stored. `value`: the job of the idempotency key, which belongs to the same
    body (`joined`) or to another one; of what is too much, how much there is."""
    if status == b"full":
        return QueueFull(
            f"{value} jobs wait for {job.model!r} in the lane {job.lane} already, which is as many "
            "as may."
        )
    if status == b"joined":
        return JoinedJob(value.decode())
    if status == b"reused":
        return IdempotencyKeyReused(
            f"This Idempotency-Key was sent with another body, for {value.decode()}. "
            "Send a new key."
        )
    if status == b"locked":
        return ConversationLocked(
            "Another request has changed this conversation since this one has read it; try again."
        )
    if status == b"gone":
        return NotFound("This conversation was deleted, or has expired.")
    if status == b"lost":
        return RedisUnavailable("The queue has lost the body of this request; send it again.")
    if status == b"waiting":
        return TooManyWaiting(
            f"{value} of your jobs wait for {job.model!r} in the lane {job.lane} already, which is "
            "as many as you may have."
        )
    return no_room(status, value)


def no_room(status: bytes, value: int | bytes) -> FlotillaError:
    """Why a tenant may not keep more: the status of a script, and how many bytes it keeps."""
    return (QuotaExceeded if status == b"quota" else RedisMemoryFull).of(int(value))


def _milliseconds(seconds: float | None) -> str:
    return "" if seconds is None else str(int(seconds * 1000))


def pack_job(job: NewJob) -> tuple[Any, ...]:
    """One job of the first argument of `submit`. What is False at its end is left out; its
    deadline is in microseconds from now, 0: none."""
    request = (
        job.tenant, job.pool, job.lane, job.model, job.endpoint, "1" if job.stream else "0",
        str(int(job.ttl_s * 1000)), str(job.max_attempts),
        json.dumps(dict(job.metadata)) if job.metadata else "", _milliseconds(job.keep_s),
        _milliseconds(job.run_deadline_s), _milliseconds(job.queue_deadline_s),
        _milliseconds(job.deadline_s), job.retried_from, job.key, job.reserved,
    )  # fmt: skip
    deadline_s = job.deadline_s
    if job.queue_deadline_s is not None:
        deadline_s = min(job.queue_deadline_s, deadline_s or job.queue_deadline_s)
    key, origin = job.idempotency, job.origin.pack()
    packed: list[object] = [
        job.id, pack(request), job.body if len(job.body) <= PIECE_BYTES else len(job.body),
        int((deadline_s or 0) * 1e6), job.gateway,
        *((key.name, key.body_hash, int(key.ttl_s * 1000)) if key else (False, False, False)),
        origin or False, job.turn.pack() if job.turn else False,
        str(job.weight) if job.weight != 1 else False, job.prefixes or False, job.notify or False,
    ]  # fmt: skip
    while packed[-1] is False:
        packed.pop()
    return tuple(packed)

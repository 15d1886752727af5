"""`submit`: make jobs and queue each, or lease it straight to a worker with advertised slots.

Comes from `gateway/core/submitter.py` by way of the JobQueue; the job goes on in `acquire`, or in
the worker's control message.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from shared.job.job import NewJob
from shared.job.packing import pack
from shared.job.quotas import Quotas
from shared.store.redis.pipelined_connection import Argument
from shared.store.redis.scripts.runner import Scripts


class SubmitStatus(StrEnum):
    """What became of a job."""

    OK = "ok"
    """It was queued or leased."""
    EXISTS = "exists"
    """There is a job with this id already, which stays as it is: the call was a repeated one."""
    JOINED = "joined"
    """An earlier call with the same idempotency key and body has made a job: nothing was stored."""
    REUSED = "reused"
    """The same with another body."""
    FULL = "full"
    """Its lane holds as many jobs as it may: nothing was stored."""
    LOCKED = "locked"
    """Its conversation has changed since it was read: nothing was stored."""
    GONE = "gone"
    """Its conversation was deleted, or has expired: nothing was stored."""
    JOBS = "jobs"
    """Its tenant has as many jobs as it may: nothing was stored."""
    BYTES = "bytes"
    """Its tenant has as many bytes as it may: nothing was stored."""


# Looked up for every job: calling the enum costs several times as much.
_STATUS = {status.encode(): status for status in SubmitStatus}


class Submitted(NamedTuple):
    """The reply for one job."""

    status: SubmitStatus
    waiting: int
    """Jobs waiting in its lane and shard; 0 if it has a worker already. Of what is too much, how
    much there is."""
    job_id: str = ""
    """The job that the call joins."""


async def call(
    scripts: Scripts, shard: int, jobs: Sequence[NewJob], *, max_depth: int, quotas: Quotas
) -> list[Submitted]:
    """Submit jobs of one shard; at most `max_depth` may wait in a lane. Raises redis' errors."""
    return parse(await scripts.run("submit", shard, _arguments(jobs, max_depth, quotas)))


def start(
    scripts: Scripts, shard: int, jobs: Sequence[NewJob], *, max_depth: int, quotas: Quotas
) -> asyncio.Future[Any]:
    """`call` without a coroutine where there is a connection; the result is for `parse`."""
    return scripts.start("submit", shard, _arguments(jobs, max_depth, quotas))


def parse(reply: Sequence[Any]) -> list[Submitted]:
    """The reply, for each job in the order of the call."""
    return [
        Submitted(_STATUS[status], waiting)
        if type(waiting) is int
        else Submitted(_STATUS[status], 0, waiting.decode())
        for status, waiting in zip(reply[::2], reply[1::2], strict=True)
    ]


def pack_job(job: NewJob) -> tuple[object, ...]:
    """One job of the first argument: id, packed Request, body, deadline in us, gateway.

    With an idempotency key also its name, the hash of the body, how long it is kept in ms; without
    one, but with an origin or a turn, three times False. Then the origin, if there is one, and the
    turn of a conversation.
    """
    request = (
        job.tenant,
        job.pool,
        job.lane,
        job.model,
        job.endpoint,
        "1" if job.stream else "0",
        str(int(job.ttl_s * 1000)),
        str(job.max_attempts),
        json.dumps(dict(job.metadata)) if job.metadata else "",
        "" if job.keep_s is None else str(int(job.keep_s * 1000)),
        "" if job.run_deadline_s is None else str(int(job.run_deadline_s * 1000)),
        "" if job.queue_deadline_s is None else str(int(job.queue_deadline_s * 1000)),
        "" if job.deadline_s is None else str(int(job.deadline_s * 1000)),
        job.retried_from,
    )
    deadline_s = job.deadline_s
    if job.queue_deadline_s is not None:
        deadline_s = min(job.queue_deadline_s, deadline_s or job.queue_deadline_s)
    packed = job.id, pack(request), job.body, int((deadline_s or 0) * 1e6), job.gateway
    origin, key, turn = job.origin.pack(), job.idempotency, job.turn
    if key is None and not origin and turn is None:
        return packed
    packed_key = (key.name, key.body_hash, int(key.ttl_s * 1000)) if key else _NO_KEY
    if turn is None:
        return (*packed, *packed_key, origin) if origin else (*packed, *packed_key)
    return (*packed, *packed_key, origin or False, turn.pack())


_NO_KEY = (False, False, False)


def _arguments(jobs: Sequence[NewJob], max_depth: int, quotas: Quotas) -> tuple[Argument, ...]:
    packed = pack([pack_job(job) for job in jobs])
    return packed, max_depth, unique_token(), quotas.jobs, quotas.kept_bytes


def unique_token() -> str:
    """Twelve random characters: a fencing token, or the beginning of lease ids."""
    return os.urandom(6).hex()

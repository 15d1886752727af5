"""Packs the jobs of `submit`, which queues or leases each, and parses the reply.

Comes from `gateway/core/submitter.py` by way of the JobQueue; the job goes on in `acquire`, or in
the worker's control message.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from shared.job.errors import (
    ConversationLocked,
    IdempotencyKeyReused,
    NotFound,
    QueueFull,
    QuotaExceeded,
    TooManyWaiting,
)
from shared.job.job import NewJob
from shared.job.packing import pack
from shared.job.quotas import Quotas
from shared.job.replies import JoinedJob, SubmitReply
from shared.store.connection import Argument


def pack_submit(
    jobs: Sequence[NewJob],
    max_depth: int,
    quotas: Quotas,
    lift: float,
    owner: tuple[str, int] | None = None,
) -> tuple[Argument, ...]:
    """The script's arguments; the jobs are of one shard. `owner`: as for `submit_all`."""
    packed = pack([pack_job(job) for job in jobs])
    kept = quotas.jobs, quotas.kept_bytes
    return packed, max_depth, unique_token(), *kept, lift, quotas.waiting, *(owner or ())


def parse_submit(jobs: Sequence[NewJob], reply: Sequence[Any]) -> list[SubmitReply]:
    """What became of each of the jobs."""
    return [
        value if status in _MADE else parse_refusal(job, status, value)
        for job, status, value in zip(jobs, reply[::2], reply[1::2], strict=True)
    ]


_MADE = (b"ok", b"exists")
"""`exists`: the call was a repeated one. The value is the number of jobs that wait."""
_QUOTAS = {b"jobs": "jobs", b"bytes": "bytes"}


def parse_refusal(job: NewJob, status: bytes, value: Any) -> SubmitReply:
    """Why nothing was stored. `value`: the job of the idempotency key; of what is too much, how
    much there is."""
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
    if status == b"waiting":
        return TooManyWaiting(
            f"{value} of your jobs wait for {job.model!r} in the lane {job.lane} already, which is "
            "as many as you may have."
        )
    return QuotaExceeded.of(_QUOTAS[status], value)


def pack_job(job: NewJob) -> tuple[object, ...]:
    """One job of the first argument: id, packed Request, body, deadline in us, gateway.

    With an idempotency key also its name, the hash of the body, how long it is kept in ms; without
    one, but with something behind it, three times False. Then the origin, the turn of a
    conversation, the tenant's weight if it is not 1, the hashes of the prompt's prefixes, and whom
    its end is told to, each as far as one follows.
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
        job.key,
        job.reserved,
    )
    deadline_s = job.deadline_s
    if job.queue_deadline_s is not None:
        deadline_s = min(job.queue_deadline_s, deadline_s or job.queue_deadline_s)
    packed = job.id, pack(request), job.body, int((deadline_s or 0) * 1e6), job.gateway
    origin, key, turn = job.origin.pack(), job.idempotency, job.turn
    if (
        key is None
        and not origin
        and turn is None
        and job.weight == 1
        and not (job.prefixes or job.notify)
    ):
        return packed
    packed_key = (key.name, key.body_hash, int(key.ttl_s * 1000)) if key else _NO_KEY
    rest = [
        origin or False,
        turn.pack() if turn else False,
        str(job.weight) if job.weight != 1 else False,
        job.prefixes or False,
        job.notify or False,
    ]
    while rest and not rest[-1]:
        rest.pop()
    return (*packed, *packed_key, *rest)


_NO_KEY = (False, False, False)


def unique_token() -> str:
    """Twelve random characters: a fencing token, or the beginning of lease ids."""
    return os.urandom(6).hex()

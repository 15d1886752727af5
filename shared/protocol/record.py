"""A job's record: its hash in Redis.

| field | what | written by |
|---|---|---|
| `state` | states.py | all scripts |
| `request` | a `Request`, which never changes | submit |
| `body` | of the HTTP request | submit |
| `created_us`, `deadline_us` | by Redis' clock; the latter if there is one | submit |
| `entry` | of the job, in the stream of its lane | submit, requeue, repair |
| `queue` | where that is another lane's stream: `<pool>:<lane>` | requeue |
| `watchers`, `watched` | gateways that listen, with spaces between them; `1` if somebody sees the answer grow | submit, watch |
| `lease` | a `LastLease`, if it ever had one | acquire, submit, requeue |
| `history` | JSON: the attempts that were taken back | requeue, fail |
| `log_lost` | `1` if the job's log lacks entries | emit, and what takes the job from its worker |
| `finished_us`, `error_code` | the latter if it did not end well | emit, cancel, ... |
| `ending`, `result` | an `ResponseInfo`, and the answer's body if it was not streamed | emit |

Fields that are written together and never apart are one, a msgpack array: a hash costs by the field,
in time (Lua, the append-only file) and in memory.
"""  # noqa: E501, RUF100

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgpack

from shared.protocol.job import Attempt, Job
from shared.protocol.packing import pack
from shared.protocol.states import JobState

SUMMARY = (
    "state", "request", "created_us", "deadline_us", "lease", "history", "finished_us",
    "error_code", "ending",
)  # fmt: skip
"""The fields that a Job is made of, but for its result. None of them is large; `body` may be."""
WHOLE = (*SUMMARY, "result")


class Request(NamedTuple):
    """What the gateway said of a job, in words. The scripts know them by these names."""

    tenant: str
    pool: str
    lane: str
    model: str
    endpoint: str
    stream: str
    """`1` if the answer is server-sent events."""
    ttl_ms: str
    max_attempts: str
    metadata: str
    """JSON, empty if there is none."""


class LastLease(NamedTuple):
    """Who holds the job; only the counts, if nobody does. The scripts know them by these names."""

    worker: str
    lease_id: str
    generation: int
    """How many leases there were."""
    attempts: int
    """How many of them count against the job."""
    lease_ms: str
    started_us: str


class ResponseInfo(NamedTuple):
    """What a worker says of the answer."""

    status: int
    content_type: str
    prompt_tokens: int
    completion_tokens: int

    def pack(self) -> bytes:
        """As it stands in the record."""
        return pack(self)


def read_lease(packed: bytes) -> LastLease:
    """From the record's field."""
    return LastLease(*msgpack.unpackb(packed))


def read_job(job_id: str, fields: Sequence[str], values: Sequence[bytes | None]) -> Job | None:
    """A Job from what HMGET returns for these fields of its hash; None if there is no such hash."""
    found = zip(fields, values, strict=True)
    raw = {name.encode(): value for name, value in found if value is not None}
    return parse_job(job_id, raw) if raw else None


def parse_job(job_id: str, raw: Mapping[bytes, bytes]) -> Job:
    """A Job from the fields of its hash."""

    def text(name: bytes) -> str:
        return raw.get(name, b"").decode()

    request = Request(*msgpack.unpackb(raw[b"request"]))
    lease = read_lease(raw[b"lease"]) if b"lease" in raw else None
    ending = ResponseInfo(*msgpack.unpackb(raw[b"ending"])) if b"ending" in raw else None
    state, error_code = JobState(text(b"state")), text(b"error_code")
    created_us = int(raw[b"created_us"])
    started_at = int(lease.started_us) / 1e6 if lease and lease.worker else None
    finished_at = _seconds(raw.get(b"finished_us"))
    attempts = [
        Attempt(a["worker"], int(a["started_us"]) / 1e6, int(a["ended_us"]) / 1e6, a["reason"])
        for a in json.loads(text(b"history") or "[]")
    ]
    # An attempt that was taken back stands in the history already, the last one stands in the hash.
    lost = error_code in {"worker_lost", "too_many_attempts"} and attempts
    if lease and started_at is not None and not lost:
        attempts.append(Attempt(lease.worker, started_at, finished_at, state))
    return Job(
        id=job_id,
        state=state,
        tenant=request.tenant,
        pool=request.pool,
        lane=request.lane,
        model=request.model,
        endpoint=request.endpoint,
        stream=request.stream == "1",
        created_at=created_us / 1e6,
        started_at=started_at,
        finished_at=finished_at,
        deadline_at=_seconds(raw.get(b"deadline_us")),
        ttl_s=int(request.ttl_ms) / 1e3,
        attempts=tuple(attempts),
        metadata=json.loads(request.metadata or "{}"),
        error_code=error_code,
        status=ending.status if ending else 0,
        content_type=ending.content_type if ending else "",
        result=raw.get(b"result", b""),
        usage=_usage(ending) if ending else None,
        created_us=created_us,
    )


def _seconds(us: bytes | None) -> float | None:
    return int(us) / 1e6 if us else None


def _usage(ending: ResponseInfo) -> dict[str, int]:
    prompt, completion = ending.prompt_tokens, ending.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }

"""A job's record: its hash in Redis, and the Job that is made of it.

| field | value | written by |
|---|---|---|
| `state` | states.py | all scripts |
| `request` | a `Request`, which never changes | submit |
| `body` | of the HTTP request | submit |
| `created_us`, `deadline_us` | by Redis' clock; the latter, if there is one, is the deadline that applies now | submit; acquire |
| `entry` | of the job, in the stream of its lane | submit, requeue |
| `queue` | where that is another lane's stream: `<pool>:<lane>` | requeue |
| `watchers`, `watched` | gateways that get its frames, with spaces between them; `1` if a client reads its events | submit, watch, unwatch |
| `lease` | a `LastLease`, if it ever had one | acquire, submit, requeue |
| `history` | JSON: the attempts that were taken back, the latest 100 | requeue, fail |
| `restart_seq` | number of the log's last entry before it was deleted, if the job began anew | requeue |
| `log_lost` | `1` if the job's log lacks entries | emit, and what takes the job from its worker |
| `finished_us`, `error_code` | the latter if it did not end well | emit, cancel, ... |
| `response`, `result` | a `ResponseInfo`, and the body of an answer that was not streamed, if it is at most 64 KiB | emit |
| `result:0`, `result:1`, ... | the pieces of a longer body (result.py); of a job that ended otherwise they mean nothing | store_piece |
| `headers` | JSON: further headers of that answer, if it has any | emit |
| `first_us` | from the last lease to the first output, if a worker ended the job | emit |
| `weight` | its tenant's, if it is not 1 | submit |
| `prefixes` | hashes of its prompt's prefixes (placement.py), if it has any | submit |
| `notify` | `job` or `response`, then webhook endpoints with spaces between them, if its end is told to any | submit |
| `origin` | of a traced job, or one with a request id of its client's: an `Origin` (job.py) | submit |

Fields that are written together and never apart are one, a msgpack array: the cost of a hash grows
with its fields, in time (Lua, the append-only file) and in memory.

A job whose record can't be read has failed with `record_damaged`: the next script that needs it writes
so (`fail_damaged` in scripts/common/job.lua), and it is shown so before.
"""  # noqa: E501, RUF100

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import msgpack

from shared.job.job import Attempt, Job, Origin
from shared.job.lanes import CLIENT_LANES, SUSPECT_FROM
from shared.job.packing import pack
from shared.job.states import JobState

SUMMARY = (
    "state", "request", "created_us", "deadline_us", "lease", "history", "finished_us",
    "error_code", "response", "first_us", "origin",
    "notify",
)  # fmt: skip
"""The fields that a Job is made of, but for its result. None of them is large, as `body` may be."""
WHOLE = (*SUMMARY, "result", "headers")


class Request(NamedTuple):
    """What the gateway submitted, but for the body. The scripts use these names."""

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
    keep_ms: str
    """How long it may run on without a reader; empty: to its end."""
    run_ms: str
    """Time from its first start to its run deadline; empty: it has none."""
    queue_ms: str
    """Time from submit to its queue deadline; empty: it has none."""
    total_ms: str
    """Time from submit to the deadline for the whole job; empty: it has none."""
    retried_from: str
    """The job whose request it repeats; empty if it repeats none."""
    key: str
    """The id of the API key that submitted it; empty: it stands in the settings."""
    reserved: str
    """The tokens that were taken from its token limits; empty: none."""


class LastLease(NamedTuple):
    """The worker that holds the job; without one only the counts. The scripts use these names."""

    worker: str
    lease_id: str
    generation: int
    """How many leases there were."""
    attempts: int
    """How many of them count against the job."""
    lease_ms: str
    started_us: str
    from_seq: int
    """Number of the last entry in the job's log when this lease was made."""


class Lease(NamedTuple):
    """As LastLease, in the new queue (queue_scripts/common/job.lua)."""

    worker: str
    generation: int
    number: int
    start: int
    best: int
    attempts: int
    claims: int
    started_us: int


class ResponseInfo(NamedTuple):
    """The response that a worker reported."""

    status: int
    content_type: str
    prompt_tokens: int
    completion_tokens: int
    result_bytes: int
    """Length of the body of an answer that was not streamed."""
    cached_tokens: int
    """Of the prompt: those that the engine had in its cache."""

    def pack(self) -> bytes:
        """As the record stores it."""
        return pack(self)


_NO_REQUEST = Request("", "", CLIENT_LANES[1], "", "", "", "86400000", "1", *[""] * 8)
"""In place of one that can't be read."""
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    msgpack.exceptions.UnpackException,
)
"""What reading damaged bytes raises."""


def read_lease(packed: bytes) -> LastLease:
    """From the record's field."""
    return LastLease(*msgpack.unpackb(packed))


def read_job(job_id: str, fields: Sequence[str], values: Sequence[bytes | None]) -> Job | None:
    """A Job from what HMGET returns for these fields; None if there is no record."""
    found = zip(fields, values, strict=True)
    raw = {name.encode(): value for name, value in found if value is not None}
    return parse_job(job_id, raw) if raw else None


def parse_job(job_id: str, raw: Mapping[bytes, bytes]) -> Job:
    """A Job from the fields of its record."""
    try:
        return _parse_job(job_id, raw)
    except _UNREADABLE:
        return _parse_job(job_id, _damaged(raw))


def _damaged(raw: Mapping[bytes, bytes]) -> dict[bytes, bytes]:
    """The record of the same job as one that has failed."""
    try:
        request = _read_request(raw[b"request"])
    except _UNREADABLE:
        request = _NO_REQUEST
    created_us = raw.get(b"created_us", b"")
    return {
        b"state": JobState.FAILED.encode(),
        b"error_code": b"record_damaged",
        b"request": pack(request),
        b"created_us": created_us if created_us.isdigit() else b"0",
    }


def _parse_job(job_id: str, raw: Mapping[bytes, bytes]) -> Job:
    def read(field: str, parse: Callable[[bytes], Any]) -> Any:
        value = raw.get(field.encode())
        return parse(value) if value else None

    request = _read_request(raw[b"request"])
    lease: LastLease | Lease | None = read("lease", _checked_lease)
    response: ResponseInfo | None = read("response", _read_response)
    state = JobState(raw[b"state"].decode())
    if state is JobState.IN_PROGRESS and lease is None:
        raise ValueError("no lease")
    created_us = int(raw[b"created_us"])
    finished_at = read("finished_us", _seconds)
    attempts: list[Attempt] = read("history", _read_history) or []
    if lease and lease.worker:
        _add_last(attempts, Attempt(lease.worker, _seconds(lease.started_us), finished_at, state))
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
        started_at=int(lease.started_us) / 1e6 if lease and lease.worker else None,
        finished_at=finished_at,
        deadline_at=read("deadline_us", _seconds),
        queue_deadline_s=int(request.queue_ms) / 1e3 if request.queue_ms else None,
        run_deadline_s=int(request.run_ms) / 1e3 if request.run_ms else None,
        total_deadline_s=int(request.total_ms) / 1e3 if request.total_ms else None,
        retried_from=request.retried_from,
        ttl_s=int(request.ttl_ms) / 1e3,
        attempts=tuple(attempts),
        metadata=json.loads(request.metadata or "{}"),
        error_code=read("error_code", bytes.decode) or "",
        status=response.status if response else 0,
        content_type=response.content_type if response else "",
        result=raw.get(b"result", b""),
        result_bytes=response.result_bytes if response else 0,
        usage=_usage(response) if response else None,
        created_us=created_us,
        suspect=state is JobState.QUEUED and lease is not None and lease.attempts >= SUSPECT_FROM,
        headers=read("headers", _read_headers) or {},
        first_output_s=read("first_us", _seconds),
        origin=Origin.read(raw.get(b"origin", b"")),
        notify=raw.get(b"notify", b"").decode(errors="replace"),
        key=request.key,
    )


def _add_last(attempts: list[Attempt], last: Attempt) -> None:
    """The record of a job that failed when it was taken back has its last attempt twice."""
    if not attempts or attempts[-1][:2] != last[:2]:
        attempts.append(last)


def _read_request(packed: bytes) -> Request:
    request = Request(*msgpack.unpackb(packed))
    if request.lane not in CLIENT_LANES or not all(isinstance(word, str) for word in request):
        raise ValueError("not a request")
    int(request.ttl_ms), int(request.max_attempts)
    int(request.queue_ms or 0), int(request.run_ms or 0), int(request.total_ms or 0)
    if not isinstance(json.loads(request.metadata or "{}"), dict):
        raise ValueError("metadata is no object")
    return request


def _checked_lease(packed: bytes) -> LastLease | Lease:
    words = msgpack.unpackb(packed)
    lease = Lease(*words) if len(words) == len(Lease._fields) else LastLease(*words)
    int(lease.generation), int(lease.attempts)
    if not isinstance(lease.worker, str):
        raise ValueError("not a lease")
    if lease.worker:
        int(lease.started_us)
    return lease


def _read_response(packed: bytes) -> ResponseInfo:
    response = ResponseInfo(*msgpack.unpackb(packed))
    if not isinstance(response.status, int) or not isinstance(response.content_type, str):
        raise ValueError("not a response")
    _ = response.prompt_tokens + response.completion_tokens + response.result_bytes
    _ = response.cached_tokens + 0
    return response


def pack_headers(headers: Sequence[tuple[str, str]]) -> str:
    """The headers of a response, as the record stores them."""
    return json.dumps(dict(headers))


def _read_headers(packed: bytes) -> dict[str, str]:
    return {str(name): str(value) for name, value in json.loads(packed).items()}


def _read_history(packed: bytes) -> list[Attempt]:
    """From the record's field."""
    if not packed.startswith(b"["):
        return [
            Attempt(worker, started_us / 1e6, ended_us / 1e6, reason, entries)
            for worker, started_us, ended_us, reason, entries in msgpack.unpackb(packed)
        ]
    return [
        Attempt(
            a["worker"],
            int(a["started_us"]) / 1e6,
            int(a["ended_us"]) / 1e6,
            a["reason"],
            int(a["entries"]),
        )
        for a in json.loads(packed)
    ]


def _seconds(us: bytes | str | int) -> float:
    return int(us) / 1e6


def _usage(response: ResponseInfo) -> dict[str, int]:
    prompt, completion = response.prompt_tokens, response.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }

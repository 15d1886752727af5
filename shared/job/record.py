"""A job's record: its hash in Redis, and the Job that is made of it.

| field | value | written by |
|---|---|---|
| `state` | states.py | all scripts |
| `request` | a `Request`, which never changes | submit |
| `body`, `body_bytes` | of the HTTP request; of a large one its length: it is a hash of pieces, `body:<id>` | submit |
| `created_us`, `deadline_us` | by Redis' clock; the latter, if there is one, is the deadline that applies now | submit; claim |
| `entry` | of the job, in the stream of its pool | submit |
| `watchers`, `watched` | gateways that get its frames, with spaces between them; `1` if a client reads its events | submit, watch, unwatch |
| `lease` | a `Lease`, if it was ever claimed | claim, emit, and what takes the job from its worker |
| `history` | the attempts that were taken back, the latest 100: worker, start, end, reason, entries | what takes it |
| `finished_us`, `error_code` | the latter if it did not end well | what ends it |
| `response`, `result` | a `ResponseInfo`, and the body of an answer that was not streamed, if it is at most 64 KiB | emit |
| `result:0`, `result:1`, ... | the pieces of a longer body (result.py) | store_piece |
| `headers` | JSON: further headers of that answer, if it has any | emit |
| `first_us` | from the last claim to the first output, if a worker ended the job | emit |
| `weight` | its tenant's, if it is not 1 | submit |
| `prefixes` | hashes of its prompt's prefixes (rules.py), if it has any | submit |
| `kept` | bytes that it counts in the ledger (scripts/common/kept.lua) | submit, what ends it, or changes it later |
| `idempotency` | of one with an idempotency key: the key's name | submit |
| `notify` | `job` or `response`, then webhook endpoints with spaces between them, if its end is told to any | submit |
| `origin` | of a traced job, or one with a request id of its client's: an `Origin` (job.py) | submit |
| `upto` | of a response: where its input is (conversations.py) | extend_conversation, replace_input |

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
from pydantic import TypeAdapter

from shared.job.job import Attempt, Job, Origin
from shared.job.rules import CLIENT_LANES
from shared.job.states import JobState

pack: Callable[[Any], bytes] = msgpack.Packer(use_bin_type=False, autoreset=True).pack
"""The one packer for everything that is stored or published. Bytes and strings both get msgpack's
old `raw` head: Redis' cmsgpack has no `bin` type, and short values take one byte less."""
SUMMARY = (
    "state", "request", "created_us", "deadline_us", "lease", "history", "finished_us",
    "error_code", "response", "first_us", "origin",
    "notify",
)  # fmt: skip
"""The fields that a Job is made of, but for its result. None of them is large, as `body` may be."""
WHOLE = (*SUMMARY, "result", "headers")


class Request(NamedTuple):
    """What the gateway submitted (NewJob), but for the body: times in milliseconds, `1` for true,
    empty where there is nothing. The scripts use these names."""

    tenant: str
    pool: str
    lane: str
    model: str
    endpoint: str
    stream: str
    ttl_ms: str
    max_attempts: str
    metadata: str
    """JSON."""
    keep_ms: str
    run_ms: str
    queue_ms: str
    total_ms: str
    retried_from: str
    key: str
    reserved: str


class Lease(NamedTuple):
    """The worker that holds the job; without one only the counts. The scripts spell the same."""

    worker: str
    generation: int
    """Of the log's last entry, as the record knows it."""
    number: int
    """Of the claim's entry."""
    start: int
    """Of the entry behind which the present answer begins; 0: it has never begun anew."""
    best: int
    """So many entries had answers that are void."""
    attempts: int
    """How many count against the job."""
    claims: int
    """How many there were."""
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
_LEASE, _RESPONSE = TypeAdapter(Lease), TypeAdapter(ResponseInfo)
_HEADERS = TypeAdapter(dict[str, str])
_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OverflowError,
    msgpack.exceptions.UnpackException,
)
"""What reading damaged bytes raises."""


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
    lease: Lease | None = read(
        "lease", lambda packed: _LEASE.validate_python(msgpack.unpackb(packed))
    )
    response: ResponseInfo | None = read(
        "response", lambda packed: _RESPONSE.validate_python(msgpack.unpackb(packed))
    )
    state = JobState(raw[b"state"].decode())
    if state is JobState.IN_PROGRESS and lease is None:
        raise ValueError("no lease")
    created_us = int(raw[b"created_us"])
    finished_at = read("finished_us", _seconds)
    attempts: list[Attempt] = read("history", _read_history) or []
    if lease and lease.worker:
        attempts.append(Attempt(lease.worker, _seconds(lease.started_us), finished_at, state))
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
        started_at=_seconds(lease.started_us) if lease and lease.worker else None,
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
        headers=read("headers", _HEADERS.validate_json) or {},
        first_output_s=read("first_us", _seconds),
        origin=Origin.read(raw.get(b"origin", b"")),
        notify=raw.get(b"notify", b"").decode(errors="replace"),
        key=request.key,
    )


def _read_request(packed: bytes) -> Request:
    request = Request(*msgpack.unpackb(packed))
    if request.lane not in CLIENT_LANES or not all(isinstance(word, str) for word in request):
        raise ValueError("not a request")
    int(request.ttl_ms), int(request.max_attempts)
    int(request.queue_ms or 0), int(request.run_ms or 0), int(request.total_ms or 0)
    if not isinstance(json.loads(request.metadata or "{}"), dict):
        raise ValueError("metadata is no object")
    return request


def pack_headers(headers: Sequence[tuple[str, str]]) -> str:
    """The headers of a response, as the record stores them."""
    return json.dumps(dict(headers))


def _read_history(packed: bytes) -> list[Attempt]:
    """From the record's field."""
    return [
        Attempt(worker, started_us / 1e6, ended_us / 1e6, reason, entries)
        for worker, started_us, ended_us, reason, entries in msgpack.unpackb(packed)
    ]


def _seconds(us: bytes | int) -> float:
    return int(us) / 1e6


def _usage(response: ResponseInfo) -> dict[str, int]:
    prompt, completion = response.prompt_tokens, response.completion_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }

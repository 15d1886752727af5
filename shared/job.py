"""A job: an HTTP request to vLLM's application that some worker will carry out."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shared.states import JobState

_ID = re.compile(r"^job_([0-9a-f]{3})[0-9a-f]{24}$")


def new_job_id(shards: int) -> str:
    """`job_`, three hex digits that name the shard, 96 random bits."""
    random = os.urandom(16)
    return f"job_{int.from_bytes(random[:4]) % shards:03x}{random[4:].hex()}"


def shard_in(job_id: str) -> int:
    """The shard that holds the keys of a job, by what is known to be its id."""
    return int(job_id[4:7], 16)


def shard_of(job_id: str) -> int | None:
    """The shard that holds the job's keys; None if this is no job id."""
    match = _ID.fullmatch(job_id)
    return int(match[1], 16) if match else None


def checked_shard(job_id: str) -> int:
    """The shard that holds the job's keys; AssertionError if this is no job id."""
    shard = shard_of(job_id)
    assert shard is not None, f"not a job id: {job_id!r}"
    return shard


class NewJob(NamedTuple):
    """What the gateway knows of a job when it submits it."""

    id: str
    tenant: str
    pool: str
    lane: str
    model: str
    endpoint: str
    body: bytes
    stream: bool
    """The answer is server-sent events."""
    ttl_s: float
    """How long it is kept after its end."""
    max_attempts: int = 3
    """Workers that may be lost with it."""
    gateway: str = ""
    """The gateway process that waits for the answer; empty if nobody does."""
    deadline_s: float | None = None
    """From now; None: it may wait for ever."""
    metadata: Mapping[str, str] | None = None

    @property
    def shard(self) -> int:
        """The one that its id names."""
        return shard_in(self.id)

    def submission(self) -> tuple[str | bytes | int, ...]:
        """What lua/submit.lua takes."""
        return (
            self.id,
            self.tenant,
            self.pool,
            self.lane,
            int((self.deadline_s or 0) * 1e6),
            self.model,
            self.endpoint,
            self.body,
            "1" if self.stream else "0",
            self.gateway,
            json.dumps(dict(self.metadata)) if self.metadata else "",
            str(int(self.ttl_s * 1000)),
            str(self.max_attempts),
        )


class LeasedJob(NamedTuple):
    """What a worker gets: the request, and what lets it write the answer."""

    id: str
    shard: int
    nonce: str
    """Of this lease: nobody else knows it."""
    term: int
    """How many leases the job has had: tells what was said under an earlier one."""
    epoch: str
    """The worker's, when it got the job; see step_log.py."""
    attempt: int
    stream: bool
    endpoint: str
    body: bytes
    watchers: str
    """The gateways that listen, with spaces between them."""
    watched: bool
    """Somebody watches the job's events."""
    waited_s: float
    """From submit to now, by Redis' clock."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """One worker's try."""

    worker: str
    started_at: float
    ended_at: float | None
    outcome: str


@dataclass(frozen=True, slots=True)
class Job:
    """A job as its hash in Redis tells it. Times are Unix seconds by Redis' clock."""

    id: str
    state: JobState
    tenant: str
    pool: str
    lane: str
    model: str
    endpoint: str
    stream: bool
    created_at: float
    started_at: float | None
    finished_at: float | None
    deadline_at: float | None
    ttl_s: float
    attempts: tuple[Attempt, ...]
    metadata: dict[str, str]
    error_code: str
    """Why it ended without an answer; see errors.job_error."""
    status: int
    """HTTP status of the answer; 0 as long as there is none."""
    content_type: str
    result: bytes
    """The whole body of an answer that is not streamed."""
    usage: dict[str, int] | None
    created_us: int

    @property
    def expires_at(self) -> float | None:
        return None if self.finished_at is None else self.finished_at + self.ttl_s


def parse_job(job_id: str, raw: Mapping[bytes, bytes]) -> Job:
    """A Job from the fields of its hash."""
    fields = {name.decode(): value for name, value in raw.items()}

    def text(name: str) -> str:
        return fields.get(name, b"").decode()

    def seconds(name: str) -> float | None:
        return int(fields[name]) / 1e6 if fields.get(name) else None

    state = JobState(text("state"))
    attempts = [
        Attempt(a["worker"], int(a["started_us"]) / 1e6, int(a["ended_us"]) / 1e6, a["reason"])
        for a in json.loads(text("history") or "[]")
    ]
    started_at, finished_at = seconds("started_us"), seconds("finished_us")
    # An attempt that was taken back stands in the history already, the last one stands in the hash.
    lost = text("error_code") in {"worker_lost", "too_many_attempts"} and attempts
    if text("worker") and started_at is not None and not lost:
        attempts.append(Attempt(text("worker"), started_at, finished_at, state))
    return Job(
        id=job_id,
        state=state,
        tenant=text("tenant"),
        pool=text("pool"),
        lane=text("lane"),
        model=text("model"),
        endpoint=text("endpoint"),
        stream=text("stream") == "1",
        created_at=int(fields["created_us"]) / 1e6,
        started_at=started_at if text("worker") else None,
        finished_at=finished_at,
        deadline_at=seconds("deadline_us"),
        ttl_s=int(fields["ttl_ms"]) / 1e3,
        attempts=tuple(attempts),
        metadata=json.loads(text("metadata") or "{}"),
        error_code=text("error_code"),
        status=int(fields.get("status") or 0),
        content_type=text("content_type"),
        result=fields.get("result", b""),
        usage=_usage(fields),
        created_us=int(fields["created_us"]),
    )


def _usage(fields: Mapping[str, Any]) -> dict[str, int] | None:
    if not fields.get("prompt_tokens"):
        return None
    prompt, completion = int(fields["prompt_tokens"]), int(fields["completion_tokens"])
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
    }

"""A job: an HTTP request to vLLM's application that some worker will carry out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from shared.protocol.states import JobState

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


class LeasedJob(NamedTuple):
    """What a worker gets: the request, and what lets it write the answer."""

    id: str
    shard: int
    lease_id: str
    """Of this lease: nobody else knows it."""
    generation: int
    """How many leases the job has had: tells what was said under an earlier one."""
    fence_token: str
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
    """A job as its record (record.py) tells it. Times are Unix seconds by Redis' clock."""

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

"""A job: an HTTP request that a worker executes with its engine."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from shared.job.states import JobState

if TYPE_CHECKING:
    from shared.job.responses import Turn

_ID = re.compile(r"^job_([0-9a-f]{3})[0-9a-f]{24}$")


def new_job_id(shards: int) -> str:
    """`job_`, three hex digits that name the shard, 96 random bits."""
    random = os.urandom(16)
    return f"job_{int.from_bytes(random[:4]) % shards:03x}{random[4:].hex()}"


def new_job_id_in(shard: int) -> str:
    """As `new_job_id`, in this shard."""
    return f"job_{shard:03x}{os.urandom(12).hex()}"


def shard_in(job_id: str) -> int:
    """The shard that holds the keys of a job. Does not check the id."""
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


class Origin(NamedTuple):
    """Where a job comes from, for traces and log lines. No text has a space in it."""

    traceparent: str = ""
    """W3C trace context of the request's span; empty: the job is not traced."""
    request_id: str = ""
    """The client's own `x-request-id`; empty: it sent none, and the job's id takes its place."""

    def pack(self) -> str:
        """As the record and the worker's lease have it; empty if there is nothing in it."""
        return f"{self.traceparent} {self.request_id}" if any(self) else ""

    @classmethod
    def read(cls, packed: bytes) -> Origin:
        """The opposite of `pack`; of damaged bytes something that is not used."""
        traceparent, _, request_id = packed.decode("ascii", "replace").partition(" ")
        return cls(traceparent, request_id)


NO_ORIGIN = Origin()


class Share(NamedTuple):
    """How a claimed job counts in its tenant's level (rules.py)."""

    lane: str
    """That of its request."""
    weight: float
    charged: float
    """What its tenant was charged as it was claimed."""


IDEMPOTENCY_TTL_S = 86_400.0
"""How long a key names its job, which is kept for at least as long after its end."""
RETRY_PREFIX = "flotilla-retry-"
"""The beginning of keys that shared/client makes for the retries of one call."""
RETRY_TTL_S = 3600.0
"""How long such a key names its job, which is kept no longer than without a key."""


class IdempotencyKey(NamedTuple):
    """A client's key as Redis holds it: it is valid for one tenant and one path."""

    name: str
    """Of the Redis key: the tenant, and a digest of the path and the client's key."""
    body_hash: bytes
    for_retries: bool = False
    """The client made it for the retries of one call."""

    @classmethod
    def of(
        cls, tenant: str, path: str, key: str, body: bytes, conversation: str = ""
    ) -> IdempotencyKey:
        """For a request with this body.

        `conversation`: of a response; its key is valid for one, in whose shard it lies.
        """
        digest = hashlib.sha256(f"{path}\0{conversation}\0{key}".encode()).hexdigest()
        return cls(
            f"{tenant}:{digest}", hashlib.sha256(body).digest(), key.startswith(RETRY_PREFIX)
        )

    @property
    def ttl_s(self) -> float:
        """How long it names its job."""
        return RETRY_TTL_S if self.for_retries else IDEMPOTENCY_TTL_S

    @property
    def job_ttl_s(self) -> float:
        """For how long its job is kept after its end, at least."""
        return 0.0 if self.for_retries else IDEMPOTENCY_TTL_S

    def shard(self, shards: int) -> int:
        """The shard of its job: all gateways look for the key there."""
        return int.from_bytes(hashlib.sha256(self.name.encode()).digest()[:8]) % shards


class NewJob(NamedTuple):
    """A job as the gateway submits it."""

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
    """Seconds for which it is kept after its end."""
    max_attempts: int = 3
    """The retry limit: attempts that may end with the loss of the worker."""
    gateway: str = ""
    """The gateway process that waits for the answer; empty if none does."""
    deadline_s: float | None = None
    """Seconds from now to the deadline for the whole job; None: it has none."""
    metadata: Mapping[str, str] | None = None
    keep_s: float | None = None
    """How long it may run on without a reader; None: to its end."""
    run_deadline_s: float | None = None
    """Time from its first start to its run deadline; None: it has none."""
    queue_deadline_s: float | None = None
    """Time from submit to its queue deadline: it has to start before; None: it has none."""
    retried_from: str = ""
    """The job whose request it repeats; empty if it repeats none."""
    idempotency: IdempotencyKey | None = None
    """Makes a further call with the same key join this job."""
    origin: Origin = NO_ORIGIN
    """The request that it comes from."""
    turn: Turn | None = None
    """The turn of a response in a conversation, in whose shard the job is; None: it has none."""
    weight: float = 1.0
    """Of its tenant: with twice the weight of another one it has twice the share."""
    prefixes: bytes = b""
    """The hashes of its prompt's prefixes (rules.py); empty if it has none."""
    notify: str = ""
    """Whom its end is told to, as in its record; empty: nobody."""
    key: str = ""
    """The id of the API key that submitted it; empty: it stands in the settings."""
    reserved: str = ""
    """The tokens that were taken from its limits, and the day (rate_limits.py); empty: none."""
    max_wait_s: float | None = None
    """It is not submitted if it is expected to wait for longer; None: however long."""

    @property
    def shard(self) -> int:
        """The shard that holds its keys."""
        return shard_in(self.id)

    def sent_with(self, key: str, request_id: bytes | None) -> NewJob:
        """The job with the id of its API key, and the `x-request-id` of its client, if it has."""
        if request_id is None:
            return self._replace(key=key) if key else self
        origin = self.origin._replace(request_id=request_id.decode("ascii"))
        return self._replace(key=key, origin=origin)


class Attempt(NamedTuple):
    """One lease of a job, from its start to its end."""

    worker: str
    started_at: float
    ended_at: float | None
    outcome: str
    entries: int | None = None
    """How many entries it added to the job's log; None for an attempt that was not taken back."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as it is in its record (record.py). Times are Unix seconds by Redis' clock."""

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
    """The deadline that applies now."""
    queue_deadline_s: float | None
    run_deadline_s: float | None
    total_deadline_s: float | None
    """Seconds from submit to the deadline for the whole job."""
    retried_from: str
    ttl_s: float
    attempts: tuple[Attempt, ...]
    metadata: dict[str, str]
    error_code: str
    """Why it ended without an answer; see errors.job_error."""
    status: int
    """HTTP status of the response; 0 as long as there is none."""
    content_type: str
    result: bytes
    """The whole body of an answer that is not streamed; empty if it is stored in pieces."""
    usage: dict[str, int] | None
    created_us: int
    result_bytes: int = 0
    """Length of the body of an answer that is not streamed; 0: there is none."""
    headers: Mapping[str, str] = field(default_factory=dict)
    """Further headers of the response."""
    first_output_s: float | None = None
    """From the last lease to the first output; None: not known."""
    origin: Origin = NO_ORIGIN
    """The request that it comes from."""
    notify: str = ""
    """Whom its end is told to; empty: nobody."""
    key: str = ""
    """The id of the API key that submitted it; empty: it stands in the settings."""

    @property
    def expires_at(self) -> float | None:
        """When the record of an ended job is deleted, Unix seconds; None while it runs."""
        return None if self.finished_at is None else self.finished_at + self.ttl_s

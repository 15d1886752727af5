"""What a store answers to gateways and workers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from shared.job.errors import FlotillaError
from shared.job.fair_shares import Account
from shared.job.job import LeasedJob
from shared.job.job_log import Entry


class LogPart(NamedTuple):
    """A part of a job's log."""

    generation: int
    """That of the job's latest lease, which wrote the entries; 0 if there was none."""
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


class Acquired(NamedTuple):
    """What a claim brings."""

    advertised: int
    """Slots that are advertised now: what the update offered less the jobs that were leased; 0 if
    more jobs may be waiting."""
    jobs: list[LeasedJob]
    suspects: bool
    """Suspects of the pool wait in the shard."""
    left_s: float = 0.0
    """Seconds until jobs may be taken that are left to their warm workers now; 0: none are."""


class NextTurn(NamedTuple):
    """Who is next in a pool."""

    account: Account
    """The tenant, and the best lane that has waiting jobs."""
    waiting: int
    """Jobs that wait in this lane."""
    level: float
    levels: Mapping[Account, float]
    """Those that were asked for."""


class AcquiredSuspect(NamedTuple):
    """What a claim of a suspect brings."""

    in_flight: int
    """Jobs that were assigned to the worker and have not reached it; if any, none was leased."""
    job: LeasedJob | None


class IsolationStage(StrEnum):
    """What a worker does on its way to run suspects."""

    NONE = ""
    """It runs none, and does not keep the right to."""
    DRAINING = "draining"
    """It claims nothing, and waits for the end of the jobs that it runs."""
    ALONE = "alone"
    """It runs suspects, one after another, and nothing else."""


@dataclass(frozen=True, slots=True)
class Renewal:
    """What a worker holds after it has renewed its leases."""

    fence_token: str
    """The worker's from now on."""
    lost: Mapping[str, str]
    """Jobs that the worker does not hold any more: id -> state, `gone` if there is no record."""
    watchers: Mapping[str, tuple[str, bool]]
    """Of the other jobs: id -> the record's `watchers` and `watched`."""


class Fenced(Exception):
    """The worker's fencing token is not valid any more: it must renew before it writes again."""

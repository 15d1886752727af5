"""What the queue answers to a submitted job."""

from __future__ import annotations

from typing import NamedTuple

from shared.job.errors import FlotillaError


class JoinedJob(NamedTuple):
    """The job that an earlier call with the same idempotency key has made."""

    id: str


SubmitReply = int | JoinedJob | FlotillaError
"""How many jobs wait, the job that the call joins, or why the job was refused: QueueFull,
IdempotencyKeyReused, QuotaExceeded, ConversationLocked or NotFound."""


class Fenced(Exception):
    """The caller owns the batch no more."""

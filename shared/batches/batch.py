"""A batch: a file of requests, whose lines run as jobs in the lane flex."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from enum import StrEnum
from hashlib import blake2b
from typing import NamedTuple

MAX_OPEN = 100
"""Batches of one tenant that have not ended."""
_ID = re.compile(r"batch_[0-9a-f]{24}")


class BatchStatus(StrEnum):
    """In OpenAI's words."""

    VALIDATING = "validating"
    FAILED = "failed"
    IN_PROGRESS = "in_progress"
    FINALIZING = "finalizing"
    COMPLETED = "completed"
    EXPIRED = "expired"
    CANCELLING = "cancelling"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing changes any more."""
        return self in _ENDED


_ENDED = (BatchStatus.FAILED, BatchStatus.COMPLETED, BatchStatus.EXPIRED, BatchStatus.CANCELLED)


class LineError(NamedTuple):
    """What is wrong with the input file, mostly with one of its lines."""

    code: str
    message: str
    line: int | None
    """Counted from 1, blank lines too; None: the whole file."""
    param: str | None = None


class Usage(NamedTuple):
    """Tokens of all lines that have ended."""

    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0


class Batch(NamedTuple):
    """A batch as Redis knows it. Times are seconds since 1970, by Redis' clock."""

    id: str
    tenant: str
    endpoint: str
    """The path to which all lines go, as in shared/api/endpoints.py."""
    input_file_id: str
    window_s: float
    """Time from its creation to its expiry."""
    completion_window: str
    """The same as its client wrote it."""
    metadata: Mapping[str, str] | None
    output_ttl_s: float | None
    """Lifetime of its output files; None: the default."""
    created_at: float
    status: BatchStatus = BatchStatus.VALIDATING
    times: Mapping[str, float] = {}
    """When it came to each of its later statuses: status -> time."""
    total: int = 0
    """Lines; 0 until they are checked."""
    completed: int = 0
    """Lines whose answers are in the output."""
    failed: int = 0
    """Lines that are in the errors."""
    usage: Usage = Usage()
    errors: tuple[LineError, ...] = ()
    """Why it has failed, or which limit its lines wait for."""
    model: str = ""
    """Of all its lines; empty: not known yet, or several."""
    output_file_id: str = ""
    """Empty until it has ended, and if no line has an answer."""
    error_file_id: str = ""
    webhooks: tuple[str, ...] = ()
    """Of a new one: endpoints that its end is told to; empty: all that have subscribed to it."""
    key: str = ""
    """The id of the API key that made it; empty: it stands in the settings."""

    @property
    def expires_at(self) -> float:
        """When lines that have not ended are given up."""
        return self.created_at + self.window_s


def new_batch_id() -> str:
    """`batch_` and 96 random bits."""
    return f"batch_{os.urandom(12).hex()}"


def file_id_of(batch_id: str, which: str) -> str:
    """The id of the file of a batch's `output` or `errors`."""
    return f"file-{blake2b(f'{batch_id} {which}'.encode(), digest_size=12).hexdigest()}"


def is_batch_id(text: str) -> bool:
    """Whether this can be the id of a batch."""
    return _ID.fullmatch(text) is not None

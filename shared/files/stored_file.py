"""A file of a tenant: what Redis knows of it. Its bytes are blobs in the storage (storage.py)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple


class Segment(NamedTuple):
    """A part of a file's bytes: a whole blob of the storage."""

    blob: str
    bytes: int


class Purpose(StrEnum):
    """What a file is for, in OpenAI's words."""

    BATCH = "batch"
    USER_DATA = "user_data"
    BATCH_OUTPUT = "batch_output"


UPLOADED = (Purpose.BATCH, Purpose.USER_DATA)
"""The purposes of files that clients upload."""


class StoredFile(NamedTuple):
    """A file that can be read. It never changes."""

    id: str
    """`file-` and 24 hex digits."""
    tenant: str
    filename: str
    purpose: Purpose
    created_at: float
    """Seconds since 1970, by Redis' clock, as `expires_at`."""
    expires_at: float | None
    segments: tuple[Segment, ...]
    """Its bytes, one behind the other; nothing is copied to make one blob of them."""

    @property
    def bytes(self) -> int:
        """How many bytes it has."""
        return total_bytes(self.segments)


def total_bytes(segments: Sequence[Segment]) -> int:
    """How many bytes these have together."""
    return sum(segment.bytes for segment in segments)


def new_file_id() -> str:
    """`file-` and 96 random bits."""
    return f"file-{os.urandom(12).hex()}"


def file_blob(file_id: str) -> str:
    """The blob of a file that was uploaded."""
    return f"files/{file_id}"

"""A file that is uploaded in parts, which become its segments."""

from __future__ import annotations

import os
from enum import StrEnum
from typing import NamedTuple

from shared.batches.batch import file_id_of
from shared.files.stored_file import Purpose

MAX_PARTS = 10_000
MAX_PART_BYTES = 64 << 20
UPLOAD_TTL_S = 3600.0
"""An upload that is not completed within this time is given up."""


class UploadStatus(StrEnum):
    """In OpenAI's words."""

    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"


class Upload(NamedTuple):
    """An upload as Redis knows it. Times are seconds since 1970, by Redis' clock."""

    id: str
    """`upload_` and 24 hex digits; those of its file are the same."""
    tenant: str
    filename: str
    purpose: Purpose
    bytes: int
    """That the whole file will have."""
    created_at: float
    expires_at: float
    file_ttl_s: float | None
    """Lifetime of its file; None: until it is deleted."""
    status: UploadStatus = UploadStatus.PENDING

    @property
    def file_id(self) -> str:
        """The id of its file, once it is completed."""
        return "file-" + self.id.removeprefix("upload_")


def new_upload_id() -> str:
    """`upload_` and 96 random bits."""
    return f"upload_{os.urandom(12).hex()}"


def new_part_id() -> str:
    """`part_` and 96 random bits."""
    return f"part_{os.urandom(12).hex()}"


def part_blob(upload_id: str, part_id: str) -> str:
    """The blob of a part; it stays that of the file."""
    return f"uploads/{upload_id}-{part_id}"


def owners(blob: str) -> tuple[str, ...]:
    """The ids of what a blob belongs to, by its name: of a file; of an upload and its file; of a
    batch and its files."""
    folder, _, name = blob.rpartition("/")
    if blob.startswith("batches/"):
        batch_id = folder.removeprefix("batches/")
        return batch_id, file_id_of(batch_id, "output"), file_id_of(batch_id, "errors")
    if blob.startswith("uploads/"):
        upload_id = name.partition("-")[0]
        return upload_id, "file-" + upload_id.removeprefix("upload_")
    return (name,)

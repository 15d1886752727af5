"""Files as OpenAI shows them, what clients say of new ones, and their schemas."""

from __future__ import annotations

from typing import Any

from gateway.description.schema import (
    MAYBE_NUMBER,
    MAYBE_TEXT,
    NUMBER,
    TEXT,
    WHOLE,
    YES_NO,
    Kinds,
    Schema,
    array,
    obj,
    ref,
)
from gateway.http.wrong_fields import sent
from shared.job.errors import (
    BadRequest,
    FileTooLarge,
    StorageNotConfigured,
    StorageQuotaExceeded,
    StorageUnavailable,
)
from shared.store.files import UPLOADED, Purpose, StoredFile

_BATCH_TTL_S = 30 * 86_400.0
_SHORTEST_S, _LONGEST_S = 3600, 30 * 86_400

FILE_ERRORS: Kinds = (StorageNotConfigured, StorageUnavailable)
WRITE_ERRORS: Kinds = (FileTooLarge, StorageQuotaExceeded)


def file_object(file: StoredFile) -> dict[str, Any]:
    """A file."""
    return {
        "id": file.id,
        "object": "file",
        "bytes": file.bytes,
        "created_at": int(file.created_at),
        "expires_at": None if file.expires_at is None else int(file.expires_at),
        "filename": file.filename,
        "purpose": file.purpose,
        "status": "processed",
    }


def purpose_in(value: object) -> Purpose:
    """The purpose of a file that a client uploads. Raises BadRequest."""
    if value in UPLOADED:
        return Purpose(str(value))
    these = " or ".join(f"`{purpose}`" for purpose in UPLOADED)
    problem = "is missing" if value is None else f"{sent(value)} is not supported"
    raise BadRequest(f"`purpose` {problem}; it must be {these}.", "purpose")


def ttl_in(purpose: Purpose, anchor: object, seconds: object) -> float | None:
    """The lifetime that a client gives a file (`expires_after`), else that of its purpose."""
    if anchor is None and seconds is None:
        return _BATCH_TTL_S if purpose is Purpose.BATCH else None
    if anchor != "created_at":
        raise BadRequest(
            f"`expires_after[anchor]` must be `created_at`, not {sent(anchor)}.",
            "expires_after[anchor]",
        )
    digits = str(seconds)
    if not digits.isdecimal() or not _SHORTEST_S <= int(digits[:9]) <= _LONGEST_S:
        raise BadRequest(
            f"`expires_after[seconds]` must be a whole number from {_SHORTEST_S} to {_LONGEST_S}, "
            f"not {sent(seconds)}.",
            "expires_after[seconds]",
        )
    return float(digits)


FILE_SCHEMAS: dict[str, Schema] = {
    "File": obj(
        "id object bytes created_at filename purpose status",
        id=TEXT,
        object={"const": "file"},
        status={"const": "processed"},
        bytes=WHOLE,
        created_at=NUMBER,
        expires_at=MAYBE_NUMBER,
        filename=TEXT,
        purpose={"enum": list(Purpose)},
    ),
    "FileList": obj(
        "object data has_more first_id last_id",
        object={"const": "list"},
        data=array(ref("File")),
        has_more=YES_NO,
        first_id=MAYBE_TEXT,
        last_id=MAYBE_TEXT,
    ),
    "DeletedFile": obj(
        "id object deleted", id=TEXT, object={"const": "file"}, deleted={"const": True}
    ),
}

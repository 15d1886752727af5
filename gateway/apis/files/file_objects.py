"""Files and uploads as OpenAI shows them, what clients say of new ones, and their schemas."""

from __future__ import annotations

from typing import Any

from gateway.description.schema import (
    ANYTHING,
    MAYBE_NUMBER,
    MAYBE_OBJECT,
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
from shared.files.stored_file import UPLOADED, Purpose, StoredFile
from shared.files.upload import Upload, UploadStatus
from shared.job.errors import (
    BadRequest,
    FileTooLarge,
    StorageNotConfigured,
    StorageQuotaExceeded,
    StorageUnavailable,
)

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


def upload_object(
    upload: Upload, status: UploadStatus, file: StoredFile | None = None
) -> dict[str, Any]:
    """An upload, with its file once it is complete."""
    return {
        "id": upload.id,
        "object": "upload",
        "bytes": upload.bytes,
        "created_at": int(upload.created_at),
        "expires_at": int(upload.expires_at),
        "filename": upload.filename,
        "purpose": upload.purpose,
        "status": status,
        "file": None if file is None else file_object(file),
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


def too_large(max_bytes: int, param: str) -> FileTooLarge:
    """The error for a file or a part above the limit."""
    error = FileTooLarge(f"There are more bytes than the {max_bytes} that are allowed here.")
    error.param = param
    return error


_FILE_FIELDS: dict[str, Schema] = {
    "bytes": WHOLE,
    "created_at": NUMBER,
    "expires_at": MAYBE_NUMBER,
    "filename": TEXT,
    "purpose": {"enum": list(Purpose)},
}
_EXPIRES_AFTER: Schema = obj(
    "anchor seconds",
    anchor={"const": "created_at"},
    seconds=WHOLE | {"minimum": _SHORTEST_S, "maximum": _LONGEST_S},
)
FILE_SCHEMAS: dict[str, Schema] = {
    "File": obj(
        "id object bytes created_at filename purpose status",
        id=TEXT,
        object={"const": "file"},
        status={"const": "processed"},
        **_FILE_FIELDS,
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
    "Upload": obj(
        "id object bytes created_at expires_at filename purpose status",
        id=TEXT,
        object={"const": "upload"},
        status={"enum": list(UploadStatus)},
        file=MAYBE_OBJECT,
        **_FILE_FIELDS,
    ),
    "UploadPart": obj(
        "id object created_at upload_id",
        id=TEXT,
        object={"const": "upload.part"},
        created_at=NUMBER,
        upload_id=TEXT,
    ),
    "UploadRequest": obj(
        "bytes filename mime_type purpose",
        bytes=WHOLE | {"minimum": 1},
        filename=TEXT,
        mime_type=TEXT,
        purpose={"enum": list(UPLOADED)},
        expires_after=_EXPIRES_AFTER,
    ),
    "UploadCompletion": obj(
        "part_ids",
        part_ids=array(TEXT) | {"description": "in the order of the file"},
        md5=MAYBE_TEXT | {"description": "of the whole file, in hex"},
    ),
}


def takes_form(file_field: str, *required: str, **fields: Schema) -> Schema:
    """A route's `openapi_extra`: its body is a form with this file, and these text fields."""
    schema = ANYTHING | {
        "required": [file_field, *required],
        "properties": {file_field: {"type": "string", "format": "binary"}, **fields},
    }
    content = {"multipart/form-data": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}

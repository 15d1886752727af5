"""Uploads: files that arrive in parts, of which any number may be sent again or at once."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.responses import JSONResponse, Response

from gateway.apis.files.file_objects import (
    FILE_ERRORS,
    WRITE_ERRORS,
    purpose_in,
    takes_form,
    too_large,
    ttl_in,
    upload_object,
)
from gateway.apis.files.received_file import FileLimits, receive_file
from gateway.core.call import read_object
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.core.receiver import Receiver, quota_of
from gateway.description.schema import errors_in, ref, shows, takes
from gateway.files.files import Files
from gateway.http.streamed_form import StreamedForm
from gateway.http.wrong_fields import wrong_field
from shared.files.stored_file import StoredFile, total_bytes
from shared.files.upload import (
    MAX_PART_BYTES,
    MAX_PARTS,
    UPLOAD_TTL_S,
    Upload,
    UploadStatus,
    new_part_id,
    new_upload_id,
    part_blob,
)
from shared.job.errors import BadRequest, BlobMissing, NotFound

router = APIRouter(
    prefix="/v1/uploads",
    tags=["OpenAI"],
    responses=errors_in(*FILE_ERRORS),
)

T = TypeVar("T", bound=BaseModel)

_MD5 = re.compile(r"[0-9a-fA-F]{32}")


class _Expiry(BaseModel):
    model_config = ConfigDict(strict=True)

    anchor: str
    seconds: int


class UploadRequest(BaseModel):
    """The body that begins an upload."""

    model_config = ConfigDict(strict=True, extra="forbid")

    bytes: Annotated[int, Field(ge=1)]
    filename: Annotated[str, Field(min_length=1, max_length=512)]
    mime_type: Annotated[str, Field(max_length=255)]
    purpose: str
    expires_after: _Expiry | None = None


class UploadCompletion(BaseModel):
    """The body that completes an upload."""

    model_config = ConfigDict(strict=True, extra="forbid")

    part_ids: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=MAX_PARTS)]
    md5: Annotated[str | None, Field(max_length=32)] = None


@router.post("", openapi_extra=shows("Upload", errors=WRITE_ERRORS) | takes(ref("UploadRequest")))
async def create(request: Request, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """Begin an upload in parts. It is given up after an hour."""
    files = gateway.of(Files)
    await files.ready()
    sent = await _body(request, gateway, UploadRequest)
    purpose, expiry = purpose_in(sent.purpose), sent.expires_after
    ttl_s = ttl_in(purpose, expiry and expiry.anchor, expiry and expiry.seconds)
    if sent.bytes > gateway.settings.max_file_bytes:
        raise too_large(gateway.settings.max_file_bytes, "bytes")
    now_s = await files.records.now_s()
    upload = Upload(
        new_upload_id(), tenant, sent.filename, purpose, sent.bytes, now_s, now_s + UPLOAD_TTL_S,
        ttl_s,
    )  # fmt: skip
    await files.uploads.add(upload, quota_of(gateway))
    return upload_object(upload, UploadStatus.PENDING)


@router.post(
    "/{upload_id}/parts",
    openapi_extra=shows("UploadPart", errors=WRITE_ERRORS) | takes_form("data"),
)
async def add_part(
    upload_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> Response:
    """Add a part of at most 64 MiB."""
    files, quota = gateway.of(Files), quota_of(gateway)

    async def store(form: StreamedForm, chunks: AsyncIterator[bytes]) -> Response:
        await files.ready()
        upload = await _pending(files, tenant, upload_id)
        part_id = new_part_id()

        async def keep(n_bytes: int) -> None:
            for name in form.fields:
                raise BadRequest(f"There is no field {name[:64]!r}.", name[:64])
            await files.uploads.add_part(upload, part_id, n_bytes, quota)

        await files.store_blob(part_blob(upload_id, part_id), chunks, keep)
        shown = {
            "id": part_id,
            "object": "upload.part",
            "created_at": int(await files.records.now_s()),
            "upload_id": upload_id,
        }
        return JSONResponse(shown)

    return await receive_file(gateway, request, FileLimits("data", MAX_PART_BYTES), store)


@router.post(
    "/{upload_id}/complete",
    openapi_extra=shows("Upload", errors=(BlobMissing,)) | takes(ref("UploadCompletion")),
)
async def complete(
    upload_id: str, request: Request, gateway: GatewayDep, tenant: TenantDep
) -> dict[str, Any]:
    """Make a file of these parts, in this order. Again, it answers the same."""
    files = gateway.of(Files)
    await files.ready()
    sent = await _body(request, gateway, UploadCompletion)
    upload = await _known(files, tenant, upload_id)
    if upload.status is UploadStatus.PENDING:
        async with gateway.of(Receiver).slot(tenant):
            file = await _whole_file(files, upload, sent)
        ended = await files.uploads.complete(upload, file)
        if isinstance(ended, list):
            used = {segment.blob for segment in file.segments}
            blobs = [part_blob(upload_id, part_id) for part_id in ended]
            await files.delete_blobs([blob for blob in blobs if blob not in used])
            return upload_object(upload, UploadStatus.COMPLETED, file)
        upload = await _known(files, tenant, upload_id)
    if upload.status is not UploadStatus.COMPLETED:
        raise _ended(upload)
    return upload_object(upload, upload.status, await files.of(tenant, upload.file_id))


async def _whole_file(files: Files, upload: Upload, sent: UploadCompletion) -> StoredFile:
    """The file of these parts. Raises BadRequest unless it is what was announced."""
    if len(set(sent.part_ids)) < len(sent.part_ids):
        raise BadRequest("A part is there twice.", "part_ids")
    segments = tuple(await files.uploads.parts(upload, sent.part_ids))
    n_bytes = total_bytes(segments)
    if n_bytes != upload.bytes:
        raise BadRequest(
            f"The parts have {n_bytes} bytes together, and the upload was created with "
            f"{upload.bytes}.",
            "part_ids",
        )
    now_s = await files.records.now_s()
    expires_at = None if upload.file_ttl_s is None else now_s + upload.file_ttl_s
    file = StoredFile(
        upload.file_id, upload.tenant, upload.filename, upload.purpose, now_s, expires_at, segments
    )
    if sent.md5 is not None:
        await _check_md5(files, file, sent.md5)
    return file


async def _check_md5(files: Files, file: StoredFile, expected: str) -> None:
    digest = hashlib.md5(usedforsecurity=False)
    if _MD5.fullmatch(expected):
        async for chunk in files.storage.read(file.segments):
            await asyncio.to_thread(digest.update, chunk)
    if digest.hexdigest() != expected.lower():
        raise BadRequest("The parts together have another MD5 sum.", "md5")


@router.post("/{upload_id}/cancel", openapi_extra=shows("Upload"))
async def cancel(upload_id: str, gateway: GatewayDep, tenant: TenantDep) -> dict[str, Any]:
    """Give an upload up, and delete its parts."""
    files = gateway.of(Files)
    _ = files.storage  # 501 without one
    upload = await _known(files, tenant, upload_id)
    ended = await files.uploads.cancel(upload)
    if ended is UploadStatus.COMPLETED:
        raise _ended(upload._replace(status=ended))
    if isinstance(ended, list):
        await files.delete_blobs([part_blob(upload_id, part_id) for part_id in ended])
    return upload_object(upload, UploadStatus.CANCELLED)


async def _known(files: Files, tenant: str, upload_id: str) -> Upload:
    upload = await files.uploads.get(tenant, upload_id)
    if upload is None:
        raise NotFound(f"There is no upload {upload_id[:64]!r}; uploads expire after an hour.")
    return upload


async def _pending(files: Files, tenant: str, upload_id: str) -> Upload:
    upload = await _known(files, tenant, upload_id)
    if upload.status is not UploadStatus.PENDING:
        raise _ended(upload)
    return upload


def _ended(upload: Upload) -> BadRequest:
    return BadRequest(f"This upload is {upload.status}.", "upload_id")


async def _body(request: Request, gateway: Gateway, kind: type[T]) -> T:
    """The request's body. Raises as `read_object`."""

    def checked(fields: dict[str, Any]) -> T:
        try:
            return kind.model_validate(fields)
        except ValidationError as error:
            raise wrong_field(error) from error

    return await read_object(gateway.settings, request.scope, request.receive, checked)

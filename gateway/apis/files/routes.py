"""Files: upload, list, fetch and delete them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import JSONResponse, Response

from gateway.apis.files.file_objects import (
    FILE_ERRORS,
    FILE_SCHEMAS,
    WRITE_ERRORS,
    file_object,
    purpose_in,
    ttl_in,
)
from gateway.apis.files.received_file import receive_file
from gateway.core.context import Gateway, GatewayDep, TenantDep
from gateway.core.receiver import quota_of
from gateway.description.api import Api
from gateway.description.schema import ANYTHING, TEXT, Schema, errors_in, shows
from gateway.files.files import Files, no_such_file
from gateway.http.content_response import content_response
from gateway.http.streamed_form import StreamedForm
from shared.job.errors import BadRequest, BlobMissing, FileInUse
from shared.storage import Segment
from shared.store.files import UPLOADED, Purpose, StoredFile, file_blob, new_file_id

_ANCHOR, _SECONDS = "expires_after[anchor]", "expires_after[seconds]"
_FIELDS = {"purpose", _ANCHOR, _SECONDS}
_FORM: Schema = ANYTHING | {
    "required": ["file", "purpose"],
    "properties": {
        "file": {"type": "string", "format": "binary"},
        "purpose": {"enum": list(UPLOADED)},
        _ANCHOR: {"const": "created_at"},
        _SECONDS: TEXT,
    },
}
_RENDERED_AT_ONCE = 500
"""Files of a list; the streams of other clients go on between two parts of it."""


def _files(gateway: GatewayDep) -> Files:
    files = gateway.of(Files)
    _ = files.storage  # 501 without one
    return files


FilesDep = Annotated[Files, Depends(_files)]

router = APIRouter(
    prefix="/v1/files",
    tags=["OpenAI"],
    responses=errors_in(*FILE_ERRORS),
)


@router.post(
    "",
    openapi_extra=shows("File", errors=WRITE_ERRORS)
    | {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": _FORM}}}},
)
async def upload(request: Request, gateway: GatewayDep, tenant: TenantDep) -> Response:
    """Store a file. It expires if `expires_after` says so; those for batches after 30 days."""

    async def store(form: StreamedForm, chunks: AsyncIterator[bytes]) -> Response:
        return JSONResponse(file_object(await _store(gateway, tenant, form, chunks)))

    return await receive_file(gateway, request, store)


async def _store(
    gateway: Gateway, tenant: str, form: StreamedForm, chunks: AsyncIterator[bytes]
) -> StoredFile:
    files, quota = gateway.of(Files), quota_of(gateway)
    await files.ready()
    await files.records.check_room(tenant, quota)
    file_id, kept = new_file_id(), []
    blob = file_blob(file_id)

    async def keep(n_bytes: int) -> None:
        purpose, ttl_s = _checked(form.fields)
        now_s = await files.records.documents.now_s()
        expires_at = None if ttl_s is None else now_s + ttl_s
        segments = (Segment(blob, n_bytes),)
        file = StoredFile(file_id, tenant, form.filename, purpose, now_s, expires_at, segments)
        await files.records.add(file, quota)
        kept.append(file)

    await files.store_blob(blob, _checked_early(form, chunks), keep)
    return kept[0]


async def _checked_early(form: StreamedForm, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """The chunks, if the fields that came before the file can be used: it may be large."""
    first = True
    async for chunk in chunks:
        if first and "purpose" in form.fields:
            purpose_in(form.fields["purpose"])
        first = False
        yield chunk


def _checked(fields: dict[str, str]) -> tuple[Purpose, float | None]:
    """The purpose and the lifetime in a form's fields. Raises BadRequest."""
    for name in fields.keys() - _FIELDS:
        raise BadRequest(f"There is no field {name[:64]!r}.", name[:64])
    purpose = purpose_in(fields.get("purpose"))
    return purpose, ttl_in(purpose, fields.get(_ANCHOR), fields.get(_SECONDS))


@router.get("", openapi_extra=shows("FileList"))
async def list_files(
    files: FilesDep,
    tenant: TenantDep,
    after: Annotated[str, Query(max_length=64)] = "",
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: Purpose | None = None,
) -> Response:
    """The tenant's files, newest first; `after=last_id` continues while `has_more` is true."""
    found, has_more = await files.records.list(tenant, after, limit, order, purpose)
    parts = []
    for at in range(0, len(found), _RENDERED_AT_ONCE):
        parts += [json.dumps(file_object(file)) for file in found[at : at + _RENDERED_AT_ONCE]]
        await asyncio.sleep(0)
    first, last = (found[0].id, found[-1].id) if found else (None, None)
    rest = json.dumps({"has_more": has_more, "first_id": first, "last_id": last})
    body = f'{{"object": "list", "data": [{", ".join(parts)}], {rest[1:]}'
    return Response(body, media_type="application/json")


@router.get("/{file_id}", openapi_extra=shows("File"))
async def retrieve(file_id: str, files: FilesDep, tenant: TenantDep) -> dict[str, Any]:
    """A file, without its content."""
    return file_object(await files.of(tenant, file_id))


@router.delete("/{file_id}", openapi_extra=shows("DeletedFile", errors=(FileInUse,)))
async def delete(file_id: str, files: FilesDep, tenant: TenantDep) -> dict[str, Any]:
    """Delete a file, unless a batch that has not ended reads it."""
    if not await files.delete(tenant, file_id):
        raise no_such_file(file_id)
    return {"id": file_id, "object": "file", "deleted": True}


@router.get(
    "/{file_id}/content",
    response_class=Response,
    responses={
        "200": {"content": {"application/octet-stream": {}}},
        **errors_in(BlobMissing),
    },
)
async def content(file_id: str, request: Request, files: FilesDep, tenant: TenantDep) -> Response:
    """The content of a file."""
    file = await files.of(tenant, file_id)
    chunks = files.storage.read(file.segments)
    return await content_response(request, chunks, file.bytes, file.filename)


API = Api(
    routers=(router,),
    forms=("/v1/files",),
    schemas=FILE_SCHEMAS,
)

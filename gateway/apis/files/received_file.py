"""Takes a file out of a form as it arrives, and puts it into the storage."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from fastapi import Request
from starlette.responses import Response

from gateway.apis.files.file_objects import too_large
from gateway.core.context import Gateway
from gateway.files.files import Files
from gateway.http.early_answer import EarlyAnswer
from gateway.http.error_response import error_response, to_flotilla_error
from gateway.http.streamed_form import StreamedForm
from shared.job.errors import BadRequest, FlotillaError
from shared.store.redis.file_records import StorageQuota

_AT_ONCE = 4
"""Files of one tenant that this gateway receives at a time; each takes some MiB. Others wait: the
server does not read them meanwhile."""
_FORM_BYTES = 1 << 16
"""What a form may have beside its file."""


class Receiver:
    """Receives the files of all tenants, a few of each at a time."""

    def __init__(self) -> None:
        self._slots: defaultdict[str, _Slots] = defaultdict(_Slots)

    @contextlib.asynccontextmanager
    async def slot(self, tenant: str) -> AsyncIterator[None]:
        """Wait until the tenant may send another file."""
        slots = self._slots[tenant]
        slots.users += 1
        try:
            async with slots.free:
                yield
        finally:
            slots.users -= 1
            if not slots.users:
                del self._slots[tenant]


class _Slots:
    def __init__(self) -> None:
        self.free = asyncio.Semaphore(_AT_ONCE)
        self.users = 0


class FileLimits(NamedTuple):
    """Of the file in one form."""

    field: str
    max_bytes: int


async def receive_file(
    gateway: Gateway,
    request: Request,
    limits: FileLimits,
    store: Callable[[StreamedForm, AsyncIterator[bytes]], Awaitable[Response]],
) -> Response:
    """The answer of `store`, which gets a form and its file's chunks; or that to any error.

    The client may be far from the end of its body then.
    """
    field, max_bytes = limits
    settings = gateway.settings
    form = StreamedForm(request.scope, request.receive, field, settings.body_timeout_s)
    try:
        announced = request.headers.get("content-length", "")
        if announced.isdigit() and int(announced) > max_bytes + _FORM_BYTES:
            raise too_large(max_bytes, field)
        async with (
            gateway.of(Receiver).slot(request.state.tenant),
            contextlib.aclosing(_limited(form, limits)) as chunks,
        ):
            return await store(form, chunks)
    except Exception as error:
        if isinstance(error, BadRequest):
            error.param = error.param or field
        if form.ended:
            raise
        answer = error_response(to_flotilla_error(error), gateway.metrics, request.scope)
        return EarlyAnswer(answer)


async def _limited(form: StreamedForm, limits: FileLimits) -> AsyncGenerator[bytes, None]:
    """The file's chunks. Raises FileTooLarge, and BadRequest if there are none."""
    n_bytes = 0
    async with contextlib.aclosing(form.file()) as chunks:
        async for chunk in chunks:
            n_bytes += len(chunk)
            if n_bytes > limits.max_bytes:
                raise too_large(limits.max_bytes, limits.field)
            yield chunk
    if not n_bytes:
        raise BadRequest(f"`{limits.field}` is empty.", limits.field)


async def store_blob(
    files: Files, name: str, chunks: AsyncIterator[bytes], keep: Callable[[int], Awaitable[None]]
) -> int:
    """Write a blob and its record (`keep`, which gets its bytes); returns its bytes.

    If it is refused, nothing is left. If Redis can't be reached the record may have been written,
    so the blob stays: maintenance deletes it if there is no record.
    """
    n_bytes = await files.storage.write(name, chunks)
    try:
        await keep(n_bytes)
    except FlotillaError:
        await files.delete_blobs([name])
        raise
    return n_bytes


def quota_of(gateway: Gateway) -> StorageQuota:
    """What each tenant may store."""
    return StorageQuota(gateway.settings.max_stored_bytes, gateway.settings.max_stored_files)

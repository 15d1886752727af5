"""Takes a file out of a form as it arrives, and puts it into the storage."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from typing import NamedTuple

from fastapi import Request
from starlette.responses import Response

from gateway.apis.files.file_objects import too_large
from gateway.core.context import Gateway
from gateway.core.receiver import received
from gateway.http.streamed_form import StreamedForm
from shared.job.errors import BadRequest

_FORM_BYTES = 1 << 16
"""What a form may have beside its file."""


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
    """The answer of `store`, which gets a form and its file's chunks; or that to any error."""
    field, max_bytes = limits
    settings = gateway.settings
    form = StreamedForm(request.scope, request.receive, field, settings.body_timeout_s)

    def check(n_bytes: int) -> None:
        if n_bytes > max_bytes + _FORM_BYTES:
            raise too_large(max_bytes, field)

    async def take() -> Response:
        try:
            async with contextlib.aclosing(_limited(form, limits)) as chunks:
                return await store(form, chunks)
        except BadRequest as error:
            error.param = error.param or field
            raise

    return await received(gateway, request, form.body, check, take)


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

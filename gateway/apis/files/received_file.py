"""Takes a file out of a form as it arrives, and puts it into the storage."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

from fastapi import Request
from starlette.responses import Response

from gateway.core.context import Gateway
from gateway.core.receiver import received
from gateway.http.streamed_form import StreamedForm
from shared.job.errors import BadRequest, FileTooLarge

_FIELD = "file"
_FORM_BYTES = 1 << 16
"""What a form may have beside its file."""


async def receive_file(
    gateway: Gateway,
    request: Request,
    store: Callable[[StreamedForm, AsyncIterator[bytes]], Awaitable[Response]],
) -> Response:
    """The answer of `store`, which gets a form and its file's chunks; or that to any error."""
    max_bytes = gateway.settings.max_file_bytes
    form = StreamedForm(request.scope, request.receive, _FIELD, gateway.settings.body_timeout_s)

    def check(n_bytes: int) -> None:
        if n_bytes > max_bytes + _FORM_BYTES:
            raise _too_large(max_bytes)

    async def take() -> Response:
        try:
            async with contextlib.aclosing(_limited(form, max_bytes)) as chunks:
                return await store(form, chunks)
        except BadRequest as error:
            error.param = error.param or _FIELD
            raise

    return await received(gateway, request, form.body, check, take)


async def _limited(form: StreamedForm, max_bytes: int) -> AsyncGenerator[bytes, None]:
    """The file's chunks. Raises FileTooLarge, and BadRequest if there are none."""
    n_bytes = 0
    async with contextlib.aclosing(form.file()) as chunks:
        async for chunk in chunks:
            n_bytes += len(chunk)
            if n_bytes > max_bytes:
                raise _too_large(max_bytes)
            yield chunk
    if not n_bytes:
        raise BadRequest(f"`{_FIELD}` is empty.", _FIELD)


def _too_large(max_bytes: int) -> FileTooLarge:
    error = FileTooLarge(f"There are more bytes than the {max_bytes} that are allowed here.")
    error.param = _FIELD
    return error

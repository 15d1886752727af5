"""Answers with the content of a file, as its bytes come from the storage."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.http import memory
from gateway.http.asgi_io import in_pieces
from gateway.http.middleware import IS_HEAD

_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._ -]")
_MEDIA_TYPE = "application/octet-stream"


async def content_response(
    request: Request, chunks: AsyncIterator[bytes], total: int, filename: str
) -> Response:
    """The chunks of `total` bytes as they come, in pieces that wait for the reader.

    Raises what they raise before the first one; later the connection is closed.
    """
    headers = _attachment(filename) | {"content-length": str(total)}
    if not total or request.scope.get(IS_HEAD):
        return Response(None, 200, headers, _MEDIA_TYPE)
    first = await anext(chunks, b"")  # an error has a status of its own until here

    async def pieces(chunk: bytes) -> AsyncIterator[bytes]:
        try:
            while chunk:
                for piece in in_pieces(chunk):
                    yield piece
                chunk = await anext(chunks, b"")
        finally:
            memory.return_soon()

    return StreamingResponse(pieces(first), 200, headers, _MEDIA_TYPE)


def _attachment(filename: str) -> dict[str, str]:
    """Headers: a page of the gateway's own origin must not be made of a client's file."""
    plain = _NOT_PLAIN.sub("_", filename)
    return {
        "content-disposition": (
            f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
        ),
        "x-content-type-options": "nosniff",
    }

"""Answers with the content of a file, or of one range of it, as its bytes come from the storage."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Mapping
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from gateway.http import memory
from gateway.http.middleware import IS_HEAD
from shared.job.errors import RangeNotSatisfiable

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9._ -]")


async def content_response(
    request: Request,
    read: Callable[[int, int], AsyncIterator[bytes]],
    total: int,
    filename: str,
) -> Response:
    """200 with all of `total` bytes, or 206 with the range that the request's header asks for.

    `read(start, end)` has the bytes from `start` to before `end`. Raises RangeNotSatisfiable, and
    what `read` raises before its first chunk; later the connection is closed.
    """
    headers = attachment(filename) | {"accept-ranges": "bytes"}
    # Without validators of our own, `If-Range` can't match.
    asked = "" if "if-range" in request.headers else request.headers.get("range", "")
    part = byte_range(asked, total)
    start, end = part or (0, total)
    if part:
        headers["content-range"] = f"bytes {start}-{end - 1}/{total}"
    headers["content-length"] = str(end - start)
    status, media_type = 206 if part else 200, "application/octet-stream"
    if start == end or request.scope.get(IS_HEAD):
        return Response(None, status, headers, media_type)
    return await streamed(read(start, end), status, headers, media_type)


async def streamed(
    chunks: AsyncIterator[bytes], status: int, headers: Mapping[str, str], media_type: str
) -> Response:
    """The chunks as they come. Raises what they raise before the first one."""
    first = await anext(chunks, b"")  # an error has a status of its own until here

    async def rest() -> AsyncIterator[bytes]:
        try:
            yield first
            async for chunk in chunks:
                yield chunk
        finally:
            memory.return_soon()

    return StreamingResponse(rest(), status, headers, media_type)


def byte_range(header: str, total: int) -> tuple[int, int] | None:
    """Start and end of the one range of bytes in a `Range`; None: all is to be sent.

    Other units, several ranges and what is no range count as none, as RFC 9110 has it. Raises
    RangeNotSatisfiable.
    """
    match = _RANGE.fullmatch(header.replace(" ", ""))
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:  # the last so many
        n_last = int(match[2])
        if not n_last or not total:
            raise RangeNotSatisfiable.of(total)
        return max(0, total - n_last), total
    start, end = int(match[1]), int(match[2]) + 1 if match[2] else total
    if match[2] and end <= start:
        return None
    if start >= total:
        raise RangeNotSatisfiable.of(total)
    return start, min(end, total)


def attachment(filename: str) -> dict[str, str]:
    """Headers: a page of the gateway's own origin must not be made of a client's file."""
    plain = _NOT_PLAIN.sub("_", filename)
    return {
        "content-disposition": (
            f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(filename, safe='')}"
        ),
        "x-content-type-options": "nosniff",
    }

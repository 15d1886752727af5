"""Sends stored answers, part by part, as fast as their clients read."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from gateway.http.asgi_io import PIECE_BYTES, Headers, ResponseWriter, in_pieces, on_disconnect
from shared.job.job import Job, NewJob
from shared.store.answers import Body

_JSON = "application/json"


async def send_body(
    response: ResponseWriter,
    status: int,
    headers: Headers,
    body: Body,
    client_left: Callable[[], bool],
) -> None:
    """Send a whole response, or a part of it if the client leaves.

    Raises as `Body.parts`; once the response has begun, the connection has to be closed then.
    """
    headers = [*headers, (b"content-length", str(body.size).encode())]
    if body.whole is not None and body.size <= PIECE_BYTES:
        await response.start(status, headers, body.whole, more=False)
        return
    to_send = body.size
    async for part in body.parts():
        for piece in in_pieces(part):
            if client_left():
                return
            to_send -= len(piece)
            if response.started:
                await response.write(piece, more=to_send > 0)
            else:
                await response.start(status, headers, piece, more=to_send > 0)


async def _send_watched(
    receive: Receive, send: Send, status: int, headers: Headers, body: Body
) -> None:
    """`send_body` that watches for a disconnect itself."""
    left = False

    def on_client_left() -> None:
        nonlocal left
        left = True

    stop_watching = on_disconnect(receive, on_client_left) if body.whole is None else None
    try:
        await send_body(ResponseWriter(send), status, headers, body, lambda: left)
    finally:
        if stop_watching is not None:
            stop_watching()


class BodyResponse(Response):
    """The response of a route."""

    def __init__(
        self,
        body: Body,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        media_type: str = _JSON,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request."""
        headers = [each for each in self.raw_headers if each[0] != b"content-length"]
        await _send_watched(receive, send, self.status_code, headers, self._body)


class StoredAnswer:
    """An answer that is complete when it begins: an ASGI application, as `JobAnswer` is.

    It is about a job that goes on without its client. `headers`: further ones of the response.
    """

    __slots__ = ("_body", "_headers", "error", "job_id", "status", "tenant")

    def __init__(
        self,
        job: NewJob | Job,
        status: int,
        body: Body,
        request_id: bytes | None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.job_id, self.tenant = job.id, job.tenant
        self.status = status
        self.error = ""
        self._body = body
        self._headers = [
            (b"content-type", _JSON.encode()),
            (b"x-flotilla-job-id", job.id.encode()),
            (b"x-request-id", request_id or job.id.encode()),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which has been read to its end."""
        await _send_watched(receive, send, self.status, self._headers, self._body)

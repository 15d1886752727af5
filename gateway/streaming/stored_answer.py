"""An answer that is complete when it begins: about a job that goes on without its client."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.types import Receive, Scope, Send

from gateway.http.response_writer import ResponseWriter
from shared.protocol.job import Job, NewJob


class StoredAnswer:
    """An ASGI application, as `JobAnswer` is. `headers`: further ones of the response."""

    __slots__ = ("_body", "_headers", "error", "job_id", "status", "tenant")

    def __init__(
        self,
        job: NewJob | Job,
        status: int,
        body: bytes,
        request_id: bytes | None,
        headers: Sequence[tuple[bytes, bytes]] = (),
    ) -> None:
        self.job_id, self.tenant = job.id, job.tenant
        self.status = status
        self.error = ""
        self._body = body
        self._headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"x-flotilla-job-id", job.id.encode()),
            (b"x-request-id", request_id or job.id.encode()),
            *headers,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which has been read to its end."""
        await ResponseWriter(send).start(self.status, self._headers, self._body, more=False)

"""A request that creates or follows a job, and its answer."""

from __future__ import annotations

import time
from typing import NamedTuple, Protocol

from fastapi import Request
from starlette.types import Receive, Scope, Send

from gateway.http.middleware import sent_request_id
from shared.tenants.api_key import ApiKey


class Incoming(NamedTuple):
    """A request whose key is known."""

    scope: Scope
    receive: Receive
    key: ApiKey
    received: float
    """When it came, on the monotonic clock in seconds."""
    request_id: bytes | None
    """The client's own `x-request-id`."""

    @property
    def tenant(self) -> str:
        """Whose key it is."""
        return self.key.tenant

    @classmethod
    def of(cls, request: Request) -> Incoming:
        """That of a route of FastAPI."""
        scope, now = request.scope, time.monotonic()
        key: ApiKey = request.state.key
        return cls(scope, request.receive, key, now, sent_request_id(scope["headers"]))


class Answer(Protocol):
    """An ASGI application that answers one request about a job."""

    @property
    def job_id(self) -> str:
        """The id of its job."""

    @property
    def tenant(self) -> str:
        """The tenant of its job."""

    @property
    def status(self) -> int:
        """The status of the response, once that has begun."""

    @property
    def error(self) -> str:
        """The code of the error that the request ended with; empty: none."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer the request, which has been read to its end."""


class WrappedAnswer:
    """An answer around another one."""

    __slots__ = ("_answer",)

    def __init__(self, answer: Answer) -> None:
        self._answer = answer

    @property
    def job_id(self) -> str:
        """See Answer."""
        return self._answer.job_id

    @property
    def tenant(self) -> str:
        """See Answer."""
        return self._answer.tenant

    @property
    def status(self) -> int:
        """See Answer."""
        return self._answer.status

    @property
    def error(self) -> str:
        """See Answer."""
        return self._answer.error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See Answer."""
        await self._answer(scope, receive, send)

"""CORS: web pages of some origins may call this gateway from a browser, with an API key."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.types import Scope, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

_METHODS = b"GET, HEAD, POST, PUT, PATCH, DELETE"
_EXPOSED = (
    b"idempotent-replayed, location, request-id, retry-after, retry-after-ms, "
    b"x-flotilla-estimated-start, x-flotilla-job-id, "
    b"x-flotilla-queue-position, x-request-id, x-should-retry"
)
_MAX_AGE_S = b"7200"
"""As long as Chromium keeps the answer of a preflight request."""

Headers = list[tuple[bytes, bytes]]


class Cors:
    """The headers for pages of these origins. There are no cookies, so none for credentials."""

    def __init__(self, origins: Iterable[str]) -> None:
        """`origins`: as browsers send them; `*` is all."""
        self._origins = frozenset(origin.encode() for origin in origins)

    def headers(self, scope: Scope) -> Headers:
        """Those of the answer to this request; empty if it has no origin that may read it."""
        origin = next((value for name, value in scope["headers"] if name == b"origin"), b"")
        if not origin:
            return []
        exposed = (b"access-control-expose-headers", _EXPOSED)
        if b"*" in self._origins:
            return [(b"access-control-allow-origin", b"*"), exposed]
        if origin not in self._origins:
            return []
        return [(b"access-control-allow-origin", origin), (b"vary", b"origin"), exposed]


def preflight_headers(scope: Scope) -> Headers:
    """The further headers of the answer to a preflight request; empty if it is none."""
    sent = dict(scope["headers"])
    if scope["method"] != "OPTIONS" or b"access-control-request-method" not in sent:
        return []
    return [
        (b"access-control-allow-methods", _METHODS),
        (b"access-control-allow-headers", sent.get(b"access-control-request-headers", b"")),
        (b"access-control-max-age", _MAX_AGE_S),
    ]


def add_headers(send: Send, headers: Headers) -> None:
    """Add headers to the answer that `send`, of uvicorn, is for."""
    cycle: RequestResponseCycle = send.__self__  # type: ignore[attr-defined]
    cycle.default_headers = [*cycle.default_headers, *headers]

"""Shortcuts past uvicorn's `send` and `receive`, through its request cycle. asgi_io.py uses them.

A token costs more in uvicorn's `send` (a message, a coroutine, its checks) than in all of our own
code, and a task that waits in `receive` for a disconnect costs as much as reading the request. What
each shortcut saves is in load_tests/README.md. Tests compare each with uvicorn's own `send` and
`receive`.

Only the transport is written to, never its socket: once a connection ends, its descriptor may
belong to another client's connection.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any, cast

from uvicorn.protocols.http import httptools_impl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from shared.platform.fast_paths import FastPath, attributes_missing, parameters_differ

_ATTRIBUTES = (
    "access_log body chunked_encoding default_headers disconnected flow keep_alive message_event "
    "more_body on_response response_complete response_started scope transport "
    "waiting_for_100_continue"
)


def _problem() -> str:
    constants = ("STATUS_LINE", "HEADER_VALUE_RE")
    missing = [name for name in constants if not hasattr(httptools_impl, name)]
    if missing:
        return f"{httptools_impl.__name__} has no {', '.join(missing)}"
    return (
        attributes_missing(RequestResponseCycle, _ATTRIBUTES.split())
        or parameters_differ(RequestResponseCycle.send, "self message")
        or parameters_differ(RequestResponseCycle.receive, "self")
    )


UVICORN = FastPath("uvicorn's request cycle", _problem)


def cycle_of(bound: Any) -> RequestResponseCycle | None:
    """The request cycle whose `send` or `receive` this is; None if there is none or it may not be
    used."""
    cycle = getattr(bound, "__self__", None)
    return cycle if type(cycle) is RequestResponseCycle and UVICORN.enabled() else None


class TransportWriter:
    """A ChunkWriter that writes chunks of a chunked response onto the transport."""

    # Between two tokens of a stream its objects are no longer in the processor's caches, so the
    # cost depends on how many objects are read.
    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes, /) -> bool:
        """See ChunkWriter."""
        transport = self._transport
        # The client has left, or reads slowly: `send` handles both.
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


def start_response(
    cycle: RequestResponseCycle,
    status: int,
    headers: Iterable[tuple[bytes, bytes]],
    body: bytes,
    *,
    more: bool,
) -> bool:
    """See asgi_io.start_response_at_once. One write wakes the client once."""
    if (
        cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.access_log
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    parts, chunked = [httptools_impl.STATUS_LINE[status]], True
    invalid = httptools_impl.HEADER_VALUE_RE.search
    for name, value in (*cycle.default_headers, *headers):
        if invalid(value):
            return False  # `send` raises the right error
        chunked = chunked and name != b"content-length"
        parts += name, b": ", value, b"\r\n"
    if more and not chunked:
        return False
    if not cycle.keep_alive:
        parts.append(b"connection: close\r\n")
    if chunked:
        parts.append(b"transfer-encoding: chunked\r\n\r\n")
        if body:
            parts += b"%x\r\n" % len(body), body, b"\r\n"
        if not more:
            parts.append(b"0\r\n\r\n")
    else:
        parts += b"\r\n", body
    cycle.response_started, cycle.chunked_encoding = True, chunked
    cycle.waiting_for_100_continue = False
    cycle.transport.write(b"".join(parts))
    if not more:
        cycle.response_complete = True
        cycle.message_event.set()
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
    return True


def buffered_body(cycle: RequestResponseCycle) -> bytes | None:
    """See asgi_io.buffered_body."""
    if cycle.more_body or cycle.disconnected:
        return None
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def on_disconnect(cycle: RequestResponseCycle, callback: Callable[[], None]) -> Callable[[], None]:
    """See asgi_io.on_disconnect."""
    if cycle.disconnected:
        callback()
        return lambda: None
    cycle.flow.resume_reading()
    event = DisconnectEvent(cycle, callback)
    cycle.message_event = cast(asyncio.Event, event)
    return event.stop


class DisconnectEvent:
    """The event that uvicorn sets when a request's state changes, and when its client has left.

    It has the methods of asyncio.Event that uvicorn calls, and makes one only if that waits: each
    open stream has one of these, and an asyncio.Event takes 0.9 KB.
    """

    __slots__ = ("_awaited", "_is_set", "_watched")

    def __init__(self, cycle: RequestResponseCycle, callback: Callable[[], None]) -> None:
        self._is_set = False
        self._awaited: asyncio.Event | None = None
        self._watched: tuple[RequestResponseCycle, Callable[[], None]] | None = (cycle, callback)

    def clear(self) -> None:
        """As asyncio.Event.clear."""
        if self._is_set:
            self._is_set, self._awaited = False, None

    async def wait(self) -> None:
        """As asyncio.Event.wait."""
        if not self._is_set:
            self._awaited = self._awaited or asyncio.Event()
            await self._awaited.wait()

    def set(self) -> None:
        """As asyncio.Event.set; calls the callback if the client has left."""
        self._is_set = True
        if self._awaited is not None:
            self._awaited.set()
        if self._watched is not None:
            cycle, callback = self._watched
            if cycle.disconnected:
                callback()

    def stop(self) -> None:
        """Stop calling the callback, and break the reference cycle with uvicorn's request cycle."""
        self._watched = None

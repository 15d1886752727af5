"""The shortest ways between a request and its connection, past the ASGI server's own.

A token costs more in an ASGI server's `send` (a message, a coroutine, its checks) than in all of
our own code, and a task that waits in `receive` for a client to leave costs as much as reading the
request. So with uvicorn the body, the connection's transport and its end are taken from its request
cycle, and a response is begun on it, as its own `receive` and `send` do it (tests hold them
together). With any other server the calls of ASGI are made.

Only the transport is ever written to, never its socket: when a connection ends, the number of its
socket is given to the next one, which may be another client's or one to Redis.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import (
    HEADER_VALUE_RE,
    STATUS_LINE,
    RequestResponseCycle,
)

from gateway.http.chunk_writer import ChunkWriter


def writer(send: Send) -> ChunkWriter:
    """For the body of the response that `send` has begun. More of it must follow."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        return _OntoTransport(cycle.transport)
    return _Through(send)


class _OntoTransport:
    # Between two tokens of a stream all that belongs to it has left the processor's caches, so it
    # is the number of objects which are looked at that costs, not what is done with them.
    __slots__ = ("_transport",)

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def take(self, data: bytes) -> bool:
        transport = self._transport
        # A client that has gone, or a slow one: `send` deals with both.
        if transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True


class _Through:
    __slots__ = ("_send",)

    def __init__(self, send: Send) -> None:
        self._send = send

    def take(self, data: bytes) -> bool:
        return at_once(self._send({"type": "http.response.body", "body": data, "more_body": True}))


def at_once(sending: Any) -> bool:
    """Drive a call of `send` as far as it goes without waiting; whether that was to its end.

    A server waits for room before it takes anything: a `send` that waits has written nothing.
    """
    try:
        sending.send(None)
    except StopIteration:
        return True
    except Exception:
        return False  # the answer's own task will meet it; the relay serves others, too
    sending.close()
    return False


def begin(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, more: bool
) -> bool:
    """Send the head of a response and (the first part of) its body in one write, which wakes the
    client once. False if that can't be done: nothing has been sent, and `send` is to be called.

    `headers` in lower case; `content-length`, if it is among them, is that of `body`.
    """
    cycle = getattr(send, "__self__", None)
    if (
        not isinstance(cycle, RequestResponseCycle)
        or cycle.response_started
        or cycle.disconnected
        or cycle.flow.write_paused
        or cycle.access_log
        or cycle.scope["method"] == "HEAD"
    ):
        return False
    parts, chunked = [STATUS_LINE[status]], True
    for name, value in (*cycle.default_headers, *headers):
        if HEADER_VALUE_RE.search(value):
            return False  # `send` says what is wrong
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


def body_at_hand(receive: Receive) -> bytes | None:
    """The whole body if it has come already; else None, and `receive` is to be called."""
    cycle = getattr(receive, "__self__", None)
    if not isinstance(cycle, RequestResponseCycle) or cycle.more_body or cycle.disconnected:
        return None
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def when_left(receive: Receive, then: Callable[[], None]) -> Callable[[], None]:
    """Have `then` called if the client leaves, until what is returned is called. The body must have
    been received."""
    cycle = getattr(receive, "__self__", None)
    if isinstance(cycle, RequestResponseCycle):
        if cycle.disconnected:
            then()
            return lambda: None
        cycle.flow.resume_reading()
        departure = cycle.message_event = _Departure(cycle, then)
        return departure.forget
    watch = asyncio.create_task(_wait_until_left(receive, then))

    def forget() -> None:
        watch.cancel()

    return forget


class _Departure(asyncio.Event):
    """What uvicorn sets when there is something new about a request, or its client has left."""

    def __init__(self, cycle: RequestResponseCycle, then: Callable[[], None]) -> None:
        super().__init__()
        self._watched: tuple[RequestResponseCycle, Callable[[], None]] | None = (cycle, then)

    def set(self) -> None:
        super().set()
        if self._watched is not None:
            cycle, then = self._watched
            if cycle.disconnected:
                then()

    def forget(self) -> None:
        """And let go of what would else hold each other."""
        self._watched = None


async def _wait_until_left(receive: Receive, then: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    then()

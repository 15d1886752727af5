"""The shortest ways between a request and its connection, past the ASGI server's own.

A token costs more in an ASGI server's `send` (a message, a coroutine, its checks) than in all of
our own code, and a task that waits in `receive` for a client to leave costs as much as reading the
request. So with uvicorn the body, the connection's socket and its end are taken from its request
cycle, as its own `receive` and `send` do it (tests hold them together). With any other server the
calls of ASGI are made.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Any

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.reader import Sink

_NONE = -1
"""No file has this number: who writes to it is told so."""


def writer(send: Send) -> Sink:
    """For the body of the response that `send` has begun, until `send` is used again. More of it
    must follow, and nothing may be written once the client has left (`when_left`)."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        socket = cycle.transport.get_extra_info("socket")
        if socket is not None and cycle.transport.get_extra_info("sslcontext") is None:
            return _OntoSocket(cycle.transport, socket.fileno())
    return _Through(send)


class _OntoSocket:
    # Between two tokens of a stream all that belongs to it has left the processor's caches, so it
    # is the number of objects which are looked at that costs, not what is done with them. A
    # transport tells its protocol of the end before it closes its socket.
    __slots__ = ("_fd", "_transport")

    def __init__(self, transport: asyncio.Transport, fd: int) -> None:
        self._transport = transport
        self._fd = _NONE if transport.get_write_buffer_size() else fd

    def take(self, data: bytes) -> bool:
        data = b"%x\r\n%b\r\n" % (len(data), data)
        try:
            n_sent = os.write(self._fd, data)
        except OSError:  # a slow client, or one that has gone: `send` deals with both
            self._fd = _NONE
            return False
        if n_sent < len(data):
            self._transport.write(data[n_sent:])
            self._fd = _NONE
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


class Gathered:
    """A context in which what is sent is kept, and leaves in one write at its end.

    Each write is a system call, and wakes the client: too much for headers alone.
    """

    __slots__ = ("_cycle", "_gathering", "_transport")

    def __init__(self, send: Send) -> None:
        cycle = getattr(send, "__self__", None)
        self._cycle = cycle if isinstance(cycle, RequestResponseCycle) else None

    def __enter__(self) -> None:
        if self._cycle is not None:
            self._transport = self._cycle.transport
            self._gathering = _Gathering(self._transport)
            self._cycle.transport = self._gathering  # type: ignore[assignment]  # as much as it uses

    def __exit__(self, *error: object) -> None:
        if self._cycle is not None:
            self._cycle.transport = self._transport
            self._gathering.flush()


class _Gathering:
    """As much of a transport as uvicorn's `send` makes use of."""

    __slots__ = ("_parts", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._parts: list[bytes] = []

    def write(self, data: bytes) -> None:
        self._parts.append(data)

    def flush(self) -> None:
        if self._parts:
            self._transport.write(b"".join(self._parts))
            self._parts = []

    def close(self) -> None:
        self.flush()
        self._transport.close()


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

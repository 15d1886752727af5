"""A request's body, the parts of its response, and its client's disconnect, over ASGI.

Token path: gateway/core/answer.py -> here -> the connection's transport.

Four shortcuts go through uvicorn's request cycle, whose methods `send` and `receive` are: a token
costs more in `send` (a message, a coroutine, its checks) than in all of our own code, a task that
waits in `receive` for a disconnect costs as much as reading the request, and a head without a body
wakes the client for nothing. What each saves is in load_tests/README.md. Where another application
has wrapped `send` or `receive`, the calls that ASGI defines are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Protocol, cast

from starlette.types import Receive, Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

PIECE_BYTES = 1 << 16
"""Of stored bytes, written at once: the server buffers all that it is given, and waits then."""


def in_pieces(data: bytes) -> Iterator[bytes]:
    """Parts of at most PIECE_BYTES, at least one. Send each by itself: it waits for the reader."""
    yield data[:PIECE_BYTES]
    for at in range(PIECE_BYTES, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


def _cycle_of(bound: Any) -> RequestResponseCycle | None:
    """The request cycle whose `send` or `receive` this is; None: an application has wrapped it."""
    cycle = getattr(bound, "__self__", None)
    return cycle if isinstance(cycle, RequestResponseCycle) else None


class ChunkWriter(Protocol):
    """Writes parts of a response's body without waiting."""

    def write(self, data: bytes, /) -> bool:
        """Write `data` now. False: nothing was written, as the client reads slowly or has left."""


def chunk_writer(send: Send) -> ChunkWriter:
    """For the body of the response that `send` has begun. More of it must follow."""
    cycle = _cycle_of(send)
    if cycle is not None and cycle.chunked_encoding:
        return TransportWriter(cycle.transport)
    return AsgiWriter(send)


class TransportWriter:
    """Writes chunks of a chunked response onto the transport.

    Never onto its socket: once a connection ends, its descriptor may belong to another client's.
    """

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


class AsgiWriter:
    """One call of `send` for each part: of a response without chunks, as to HTTP/1.0."""

    __slots__ = ("_send",)

    def __init__(self, send: Send) -> None:
        self._send = send

    def write(self, data: bytes, /) -> bool:
        """See ChunkWriter."""
        message = {"type": "http.response.body", "body": data, "more_body": True}
        return completes_at_once(self._send(message))


def completes_at_once(sending: Any) -> bool:
    """Run a coroutine that calls `send` until it would wait; whether it completed.

    A server waits for room before it accepts anything, so a `send` that waits has written nothing.
    An error counts as not completed: the task that calls `send` next meets it.
    """
    coroutine: Coroutine[Any, Any, None] = sending
    try:
        coroutine.send(None)
    except StopIteration:
        return True
    except Exception:
        return False
    coroutine.close()
    return False


def buffered_body(receive: Receive) -> bytes | None:
    """The whole body if it has arrived already; None: call `receive`."""
    cycle = _cycle_of(receive)
    if cycle is None or cycle.more_body or cycle.disconnected:
        return None
    cycle.flow.resume_reading()
    cycle.message_event.clear()
    body, cycle.body = bytes(cycle.body), bytearray()
    return body


def on_disconnect(receive: Receive, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` if the client leaves, until the returned function is called.

    The body must have been received.
    """
    cycle = _cycle_of(receive)
    if cycle is None:
        waiting = asyncio.create_task(_wait_for_disconnect(receive, callback))

        def stop() -> None:
            waiting.cancel()

        return stop
    if cycle.disconnected:
        callback()
        return lambda: None
    cycle.flow.resume_reading()
    event = DisconnectEvent(cycle, callback)
    cycle.message_event = cast(asyncio.Event, event)
    return event.stop


async def _wait_for_disconnect(receive: Receive, callback: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    callback()


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


class _HeadWithBody:
    """A cycle's transport until its second write: status and headers leave with the body."""

    __slots__ = ("_cycle", "_head", "_transport")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle, self._transport, self._head = cycle, cycle.transport, b""
        cycle.transport = cast(asyncio.Transport, self)

    def write(self, data: bytes) -> None:
        """As asyncio.Transport.write."""
        if not self._head:
            self._head = data
        else:
            self.end(data)

    def end(self, body: bytes = b"") -> None:
        """Write what was held, unless that is done."""
        if self._cycle.transport is not self._transport:
            self._cycle.transport = self._transport
            if self._head:
                self._transport.write(self._head + body)


Headers = Sequence[tuple[bytes, bytes]]
"""Names in lower case."""


class ResponseWriter:
    """The response to one request."""

    __slots__ = ("_send", "started", "status")

    def __init__(self, send: Send) -> None:
        self._send = send
        self.started = False
        """Status and headers are sent and can't be changed."""
        self.status = 0
        """The status code, once `start` was called."""

    async def start(self, status: int, headers: Headers, body: bytes, *, more: bool) -> None:
        """Send status, headers and the first part of the body. `more`: other parts follow."""
        self.status = status
        cycle = _cycle_of(self._send)
        held = None
        if cycle and not (cycle.flow.write_paused or cycle.scope["method"] == "HEAD"):
            held = _HeadWithBody(cycle)  # neither call waits
        try:
            await self._send({"type": "http.response.start", "status": status, "headers": headers})
            self.started = True  # though the body may have to wait
            await self.write(body, more=more)
        finally:
            if held is not None:
                held.end()

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send the next part of the body; waits while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def chunk_writer(self) -> ChunkWriter:
        """Writes further parts without waiting. The response must have been started."""
        return chunk_writer(self._send)

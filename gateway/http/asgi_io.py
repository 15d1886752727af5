"""A request's body, the parts of its response, and its client's disconnect, over ASGI.

Token path: gateway/core/answer.py -> here -> the connection's transport.

Each function takes uvicorn's fast path (uvicorn_fastpath.py) where it is enabled and the server is
uvicorn; otherwise the calls that ASGI defines.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Protocol

from starlette.types import Receive, Send

from gateway.http import uvicorn_fastpath

PIECE_BYTES = 1 << 16
"""Of stored bytes, written at once: the server buffers all that it is given, and waits then."""


def in_pieces(data: bytes) -> Iterator[bytes]:
    """Parts of at most PIECE_BYTES, at least one. Send each by itself: it waits for the reader."""
    yield data[:PIECE_BYTES]
    for at in range(PIECE_BYTES, len(data), PIECE_BYTES):
        yield data[at : at + PIECE_BYTES]


class ChunkWriter(Protocol):
    """Writes parts of a response's body without waiting."""

    def write(self, data: bytes, /) -> bool:
        """Write `data` now. False: nothing was written, as the client reads slowly or has left."""


def chunk_writer(send: Send) -> ChunkWriter:
    """For the body of the response that `send` has begun. More of it must follow."""
    cycle = uvicorn_fastpath.cycle_of(send)
    if cycle is not None and cycle.chunked_encoding:
        return uvicorn_fastpath.TransportWriter(cycle.transport)
    return AsgiWriter(send)


class AsgiWriter:
    """The plain way: one call of `send` for each part."""

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


def start_response_at_once(
    send: Send, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes, *, more: bool
) -> bool:
    """Write the head of a response and the first part of its body together, if that is possible.

    `headers` have lower-case names; a `content-length` among them is that of `body`. `more`: other
    parts follow. False: nothing was written; call `send`.
    """
    cycle = uvicorn_fastpath.cycle_of(send)
    return cycle is not None and uvicorn_fastpath.start_response(
        cycle, status, headers, body, more=more
    )


def buffered_body(receive: Receive) -> bytes | None:
    """The whole body if it has arrived already; None: call `receive`."""
    cycle = uvicorn_fastpath.cycle_of(receive)
    return None if cycle is None else uvicorn_fastpath.buffered_body(cycle)


def on_disconnect(receive: Receive, callback: Callable[[], None]) -> Callable[[], None]:
    """Call `callback` if the client leaves, until the returned function is called.

    The body must have been received.
    """
    cycle = uvicorn_fastpath.cycle_of(receive)
    if cycle is not None:
        return uvicorn_fastpath.on_disconnect(cycle, callback)
    waiting = asyncio.create_task(_wait_for_disconnect(receive, callback))

    def stop() -> None:
        waiting.cancel()

    return stop


async def _wait_for_disconnect(receive: Receive, callback: Callable[[], None]) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    callback()


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
        if start_response_at_once(self._send, status, headers, body, more=more):
            self.started = True
            return
        await self._send({"type": "http.response.start", "status": status, "headers": headers})
        self.started = True  # though the body may have to wait
        await self.write(body, more=more)

    async def write(self, data: bytes, *, more: bool = True) -> None:
        """Send the next part of the body; waits while the client reads slowly."""
        await self._send({"type": "http.response.body", "body": data, "more_body": more})

    def chunk_writer(self) -> ChunkWriter:
        """Writes further parts without waiting. The response must have been started."""
        return chunk_writer(self._send)

"""The shortest way from a chunk to its client: onto the server's transport, if it has room.

A token costs more in an ASGI server's `send` (a message, a coroutine, its checks) than in all of
our own code, so an open stream of uvicorn's is written to as uvicorn itself writes to it (a test
holds the two together). With any other server `send` is driven by hand.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from starlette.types import Send
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

Write = Callable[[bytes], bool]
"""Writes a part of a body that was begun, or returns False and has written nothing."""


def writer(send: Send) -> Write:
    """For the body of the response that `send` has begun; more of it must follow."""
    cycle = getattr(send, "__self__", None)
    if isinstance(cycle, RequestResponseCycle) and cycle.chunked_encoding:
        return partial(_onto_transport, cycle)
    return partial(_through, send)


def _onto_transport(cycle: RequestResponseCycle, data: bytes) -> bool:
    if cycle.flow.write_paused or cycle.disconnected or cycle.response_complete:
        return False
    cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
    return True


def _through(send: Send, data: bytes) -> bool:
    """A server waits for room before it takes anything: a `send` that waits has written nothing."""
    sending: Any = send({"type": "http.response.body", "body": data, "more_body": True})
    try:
        sending.send(None)
    except StopIteration:
        return True
    except Exception:
        return False  # the answer's own task will meet it; the relay serves others, too
    sending.close()
    return False

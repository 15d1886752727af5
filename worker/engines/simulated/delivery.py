"""How responses reach clients: streamed or in one piece, also from an engine that has died."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from inspect import isawaitable
from typing import Any

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Send

from worker.engines.simulated.generation import (
    Delta,
    Disconnected,
    EngineDeadError,
    Generation,
)
from worker.engines.simulated.refusal import error_body

DEAD = error_body(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
    None,
    500,
)
"""The body of a dead engine's responses."""
_CONTENT_TYPE = (b"content-type", b"text/event-stream; charset=utf-8")


def event_bytes(data: str) -> bytes:
    """An event without a name."""
    return f"data: {data}\n\n".encode()


def part(body: bytes) -> Message:
    """A part of a body that is not its last."""
    return {"type": "http.response.body", "body": body, "more_body": True}


DONE = part(event_bytes("[DONE]"))
_DEAD_EVENT = part(event_bytes(json.dumps(DEAD)))


@asynccontextmanager
async def event_stream(
    send: Send, *, last: Message | None = None, dead: Message = _DEAD_EVENT
) -> AsyncIterator[None]:
    """Open a stream of server-sent events, which are sent in this context, and end it.

    `last` follows all other events, `dead` those of an engine that has died. A client that has
    disconnected gets neither.
    """
    await send({"type": "http.response.start", "status": 200, "headers": [_CONTENT_TYPE]})
    try:
        yield
    except Disconnected:
        return
    except EngineDeadError:
        await send(dead)
    if last is not None:
        await send(last)
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def whole(
    generation: Generation, body: Callable[[list[Delta]], Any], dead: Any = DEAD
) -> Response:
    """The response in one piece: what `body` makes of all deltas, JSON or (awaited) a Response.

    200 and `null` for a client that has disconnected, as vLLM.
    """
    try:
        deltas = await generation.next_deltas()
    except EngineDeadError:
        return JSONResponse(dead, 500)
    except Disconnected:
        return JSONResponse(None)
    made = body(deltas)
    made = await made if isawaitable(made) else made
    return made if isinstance(made, Response) else JSONResponse(made)

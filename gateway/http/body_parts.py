"""A body that is used as it arrives.

The server reads no more of the connection until what has arrived is taken: it costs the memory of a
few parts, however large it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

from starlette.types import Receive, Scope

from gateway.http.content_coding import Unpacker, coding_of
from shared.job.errors import BadRequest, BodyTimeout


class BodyParts:
    """The body of one request."""

    def __init__(self, scope: Scope, receive: Receive, silence_s: float) -> None:
        """`silence_s`: longest time without a byte."""
        self._scope = scope
        self._receive = receive
        self._silence_s = silence_s
        self.ended = False
        """All of it has been received."""

    async def all(self) -> AsyncGenerator[bytes, None]:
        """Its parts, unpacked.

        Raises UnsupportedCoding, BodyTimeout, and BadRequest, also if the client has left.
        """
        coding = coding_of(dict(self._scope["headers"]))
        unpacker = Unpacker(coding) if coding else None
        while not self.ended:
            data = await self._next()
            if unpacker is None:
                yield data
                continue
            for piece in unpacker.unpack(data):
                yield piece
                await asyncio.sleep(0)  # there may be a thousand times as many bytes
        if unpacker is not None:
            unpacker.check_ended()

    async def _next(self) -> bytes:
        try:
            async with asyncio.timeout(self._silence_s):
                message = await self._receive()
        except TimeoutError as error:
            raise BodyTimeout(f"No byte arrived for {self._silence_s:g} s.") from error
        if message["type"] == "http.disconnect":
            self.ended = True
            raise BadRequest("The client closed the connection before the body was complete.")
        self.ended = not message.get("more_body", False)
        data: bytes = message.get("body", b"")
        return data

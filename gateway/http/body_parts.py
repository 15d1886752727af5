"""A body that is used as it arrives.

The server reads no more of the connection until what has arrived is taken: it costs the memory of a
few parts, however large it is.
"""

from __future__ import annotations

import asyncio

from starlette.types import Receive

from shared.job.errors import BadRequest, BodyTimeout


class BodyParts:
    """The body of one request."""

    def __init__(self, receive: Receive, silence_s: float) -> None:
        """`silence_s`: longest time without a byte."""
        self._receive = receive
        self._silence_s = silence_s
        self.ended = False
        """All of it has been received."""

    async def next(self) -> bytes:
        """The next part. Raises BodyTimeout, and BadRequest if the client has left."""
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

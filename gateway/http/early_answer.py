"""An answer to a request whose body has not been read to its end."""

from __future__ import annotations

import asyncio
import contextlib

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

_DISCARD_S = 2.0


class EarlyAnswer(Response):
    """Closes the connection afterwards: the server would read and discard all that is to come.

    Not at once: with unread data the kernel would reset the connection, and the client, which may
    still send, could lose the answer.
    """

    def __init__(self, answer: Response) -> None:
        super().__init__(answer.body, answer.status_code)
        self.raw_headers = [*answer.raw_headers, (b"connection", b"close")]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, and discard what comes for a moment."""

        async def send_open(message: Message) -> None:
            if message["type"] == "http.response.body":
                message["more_body"] = True
            await send(message)

        await super().__call__(scope, receive, send_open)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_DISCARD_S):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})

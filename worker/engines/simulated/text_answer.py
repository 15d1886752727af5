"""The answer to one request for text: its generation, streamed or in one piece.

The subclasses make the bytes of each endpoint: see choice_answers.py and event_answers.py.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
from starlette.types import Message, Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.generation import Delta, Disconnected, EngineDeadError, Generation
from worker.engines.simulated.text_request import TextRequest

encode = msgspec.json.encode
DEAD = (
    b'{"error":{"message":"The simulated engine is dead.","type":"InternalServerError",'
    b'"param":null,"code":500}}'
)
"""The body of a dead engine's answers."""


class TextAnswer(ABC):
    """Made of a valid request. Raises RefusedError if the request has no room for an answer."""

    default_limit: int | None = None
    """Tokens of an answer whose request names no limit; None: all that have room."""

    def __init__(
        self, request: TextRequest, response_id: str, model: str, max_model_len: int
    ) -> None:
        self.request, self.response_id, self.model = request, response_id, model
        self.created = int(time.time())
        self.generation = Generation(stream=bool(request.stream), journal=JOURNAL.get())
        prompts, how = request.prompts(), request.sampling()
        limits = [request.limit(each, max_model_len, self.default_limit) for each in prompts]
        for call, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            self.generation.add(call, prompt, how, limit)
        self.n_prompt_tokens = sum(prompt.n_tokens for prompt in prompts)

    @property
    def cached_tokens(self) -> int | None:
        """Prompt tokens that the prefix cache held; None if no sequence ran, or there is none."""
        first = self.generation.sequences[:: self.request.n or 1]  # of each prompt
        cached = [each.cached_tokens for each in first if each.cached_tokens is not None]
        return sum(cached) if cached else None

    @abstractmethod
    def _opening(self) -> Iterable[bytes]:
        """The events just before the first delta's."""

    @abstractmethod
    def _event(self, delta: Delta) -> bytes:
        """The event of a delta."""

    @abstractmethod
    def _closing(self) -> Iterable[bytes]:
        """The events behind the last delta's."""

    @abstractmethod
    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        """The answer in one piece, of all deltas."""

    def _interceptor(self) -> Callable[[Delta], bool] | None:
        """Gets the deltas behind the first ones; see `Generation.interceptor`."""
        return None

    async def send_stream(self, send: Send) -> None:
        """Send it as server-sent events, each in a body message of its own."""
        content_type = (b"content-type", b"text/event-stream; charset=utf-8")
        await send({"type": "http.response.start", "status": 200, "headers": [content_type]})
        generation = self.generation
        try:
            deltas = await generation.next_deltas()
            for event in self._opening():
                await send(_part(event))
            while deltas:
                for delta in deltas:
                    await send(_part(self._event(delta)))
                generation.interceptor = self._interceptor()
                deltas = await generation.next_deltas()
            for event in self._closing():
                await send(_part(event))
        except Disconnected:
            return
        except EngineDeadError:
            await send(_part(b"data: %b\n\n" % DEAD))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def send_whole(self, send: Send) -> None:
        """Send it in one piece; `null` to a client that has disconnected, as vLLM.

        Raises EngineDeadError, before anything is sent.
        """
        try:
            body = encode(self._whole(await self.generation.next_deltas()))
        except Disconnected:
            body = b"null"
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def text_of(deltas: Iterable[Delta]) -> str:
    """Their text."""
    return "".join(delta.text for delta in deltas)


def _part(body: bytes) -> Message:
    return {"type": "http.response.body", "body": body, "more_body": True}

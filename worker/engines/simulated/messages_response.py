"""The simulated engine's responses to Anthropic messages requests: vLLM 0.32's JSON and events."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any

from pydantic import BaseModel, Field, model_validator
from starlette.responses import JSONResponse, Response
from starlette.types import Message as AsgiMessage
from starlette.types import Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.delivery import DEAD, event_stream, part, whole
from worker.engines.simulated.generation import Delta, Generation, Prompt
from worker.engines.simulated.refusal import bad_value
from worker.engines.simulated.request import Body, Message
from worker.engines.simulated.sampling import room, sampling

_MAX_STOPS = 4
_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}
_FIELDS = {
    *("model", "messages", "max_tokens", "system", "stop_sequences", "stream"),
    *("temperature", "top_p", "tools", "tool_choice", "thinking"),
}


class _Conversation(BaseModel):
    """The fields that both of Anthropic's requests have."""

    model: str
    messages: list[Message]
    system: str | list[dict[str, Any]] | None = None

    def prompt(self) -> Prompt:
        """The conversation as one prompt."""
        system = [Message(role="system", content=self.system)] if self.system else []
        lines = (f"{message.role}: {message.text()}" for message in [*system, *self.messages])
        return Prompt("\n".join(lines))


class MessagesBody(_Conversation, Body):
    """A messages request. vLLM ignores OpenAI's fields here."""

    model: str
    max_tokens: int
    stop: Annotated[list[str], Field(max_length=_MAX_STOPS)] | None = Field(
        None, alias="stop_sequences"
    )

    @model_validator(mode="before")
    @classmethod
    def _own_fields(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        return {name: value for name, value in data.items() if name in _FIELDS}


class CountTokensBody(_Conversation, Body):
    """A request to count the tokens of a conversation."""

    model: str


class MessagesResponse:
    """The response to a messages request; one text block."""

    def __init__(
        self, body: MessagesBody, response_id: str, model: str, max_model_len: int
    ) -> None:
        if body.max_tokens <= 0:
            raise bad_value("max_tokens must be positive", "max_tokens", body.max_tokens)
        self.stream = bool(body.stream)
        self.generation = Generation(stream=self.stream, journal=JOURNAL.get())
        prompt = body.prompt()
        limit = room(prompt, body.max_tokens, max_model_len)
        self.generation.add(0, prompt, sampling(body, None), limit)
        self._n_prompt, self._n_generated = prompt.n_tokens, 0
        self._head = {
            "id": f"chatcmpl-{response_id}",
            "type": "message",
            "role": "assistant",
        }
        self._model = model

    async def send_stream(self, send: Send) -> None:
        """Send the response as server-sent events, each in a body message of its own."""
        error = {"type": "internal_error", "message": "The engine is dead."}
        async with event_stream(send, dead=_event("error", error=error)):
            deltas = await self.generation.next_deltas()
            await send(_event("message_start", message=self._message([], None)))
            open_block = False
            while deltas:
                for delta in deltas:
                    for event in self._events(delta, open_block=open_block):
                        await send(event)
                    open_block = open_block or bool(delta.text)
                deltas = await self.generation.next_deltas()

    async def full(self) -> Response:
        """The response in one piece."""
        dead = {"type": "error", "error": DEAD["error"]}
        return await whole(self.generation, self._body, dead)

    def _body(self, deltas: list[Delta]) -> dict[str, Any]:
        self._n_generated = len(deltas)
        text = "".join(delta.text for delta in deltas)
        message = self._message([{"type": "text", "text": text}], deltas[-1])
        return {name: value for name, value in message.items() if value is not None}

    def _message(self, content: list[dict[str, str]], last: Delta | None) -> dict[str, Any]:
        reason = _stop(last) if last else {"stop_reason": None, "stop_sequence": None}
        return {
            **self._head,
            "content": content,
            "model": self._model,
            **reason,
            "usage": self._usage(),
        }

    def _usage(self) -> dict[str, int]:
        return {"input_tokens": self._n_prompt, "output_tokens": self._n_generated}

    def _events(self, delta: Delta, *, open_block: bool) -> Iterator[AsgiMessage]:
        self._n_generated += len(delta.token_ids)
        if delta.text:
            if not open_block:
                block = {"type": "text", "text": ""}
                yield _event("content_block_start", content_block=block, index=0)
            text = {"type": "text_delta", "text": delta.text}
            yield _event("content_block_delta", delta=text, index=0)
        if delta.finish_reason is not None:
            if open_block or delta.text:
                yield _event("content_block_stop", index=0)
            yield _event("message_delta", delta=_stop(delta), usage=self._usage())
            yield _event("message_stop")


def count_tokens(body: CountTokensBody) -> Response:
    """The response to a request to count tokens."""
    n_tokens = body.prompt().n_tokens
    counted = {"original_input_tokens": n_tokens}
    return JSONResponse({"input_tokens": n_tokens, "context_management": counted})


def _stop(last: Delta) -> dict[str, str | None]:
    if last.finish_reason == "stop" and last.stop_reason is not None:
        return {"stop_reason": "stop_sequence", "stop_sequence": last.stop_reason}
    return {"stop_reason": _STOP_REASONS[last.finish_reason or "stop"], "stop_sequence": None}


def _event(name: str, **fields: Any) -> AsgiMessage:
    data = json.dumps({"type": name, **fields}, ensure_ascii=False, separators=(",", ":"))
    return part(f"event: {name}\ndata: {data}\n\n".encode())

"""The simulated engine's responses to `/v1/responses` (OpenAI's Responses API).

The events, and their order, are vLLM's for a model without parsers; the ids of items are random, as
vLLM's are.
"""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any

from starlette.responses import Response
from starlette.types import Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.delivery import event_stream, part, whole
from worker.engines.simulated.generation import Delta, Generation
from worker.engines.simulated.response_request import ResponseBody
from worker.engines.simulated.sampling import room, sampling

_PLACE = {"output_index": 0, "content_index": 0}


class ResponsesResponse:
    """The response to a request for a response: its generation, and the JSON made of its deltas."""

    def __init__(self, body: ResponseBody, model: str, max_model_len: int) -> None:
        self._prompt = prompt = body.prompt()
        self._limit = room(prompt, body.max_output_tokens, max_model_len)
        self._body = body
        self._model = model
        self._id = body.request_id or f"resp_{uuid.uuid4().hex}"
        self._item_id = f"msg_{uuid.uuid4().hex}"
        self._created_at = int(time.time())
        self._n_events = 0
        self.stream = bool(body.stream)
        self.generation = Generation(stream=self.stream, journal=JOURNAL.get())
        self.generation.add(0, prompt, sampling(body, None), self._limit)

    async def send_stream(self, send: Send) -> None:
        """Send the response's events, each in a body message of its own."""
        deltas: list[Delta] = []
        async with event_stream(send):
            async for event in self._events(deltas):
                await send(part(event))

    async def full(self) -> Response:
        """The response in one piece."""
        return await whole(self.generation, self._response)

    async def _events(self, deltas: list[Delta]) -> AsyncIterator[bytes]:
        new = await self.generation.next_deltas()
        for name in ("created", "in_progress"):
            yield self._event(f"response.{name}", response=self._response(None))
        opened = False
        while new:
            for delta in new:
                deltas.append(delta)
                if delta.text and not opened:
                    opened = True
                    for event in self._opening():
                        yield event
                if delta.text:
                    yield self._event(
                        "response.output_text.delta",
                        delta=delta.text,
                        item_id=self._item_id,
                        logprobs=[],
                        **_PLACE,
                    )
            new = await self.generation.next_deltas()
        if opened:
            for event in self._closing(_text_of(deltas)):
                yield event
        yield self._event("response.completed", response=self._response(deltas))

    def _opening(self) -> Iterator[bytes]:
        item = {**self._item(""), "content": [], "status": "in_progress"}
        yield self._event("response.output_item.added", item=item, output_index=0)
        yield self._event(
            "response.content_part.added", item_id=self._item_id, part=_part(""), **_PLACE
        )

    def _closing(self, text: str) -> Iterator[bytes]:
        where = {"item_id": self._item_id, **_PLACE}
        yield self._event("response.output_text.done", text=text, logprobs=[], **where)
        yield self._event("response.content_part.done", part=_part(text), **where)
        yield self._event("response.output_item.done", item=self._item(text), output_index=0)

    def _event(self, name: str, **fields: Any) -> bytes:
        data = {**fields, "sequence_number": self._n_events, "type": name}
        self._n_events += 1
        dumped = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
        return f"event: {name}\ndata: {dumped}\n\n".encode()

    def _item(self, text: str) -> dict[str, Any]:
        return {
            "id": self._item_id,
            "content": [_part(text)],
            "role": "assistant",
            "status": "completed",
            "type": "message",
            "phase": None,
        }

    def _response(self, deltas: list[Delta] | None) -> dict[str, Any]:
        """The response object; without deltas that of one that is in progress."""
        body, status, text = self._body, "in_progress", _text_of(deltas or ())
        if deltas is not None:
            status = "incomplete" if deltas[-1].finish_reason == "length" else "completed"
        incomplete = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id,
            "created_at": self._created_at,
            "incomplete_details": incomplete,
            "instructions": body.instructions,
            "metadata": body.metadata,
            "model": self._model,
            "object": "response",
            "output": [self._item(text)] if text else [],
            "parallel_tool_calls": True,
            "temperature": 1.0 if body.temperature is None else body.temperature,
            "tool_choice": "auto" if body.tools else "none",
            "tools": body.tools,
            "top_p": 1.0 if body.top_p is None else body.top_p,
            "background": False,
            "max_output_tokens": self._limit,
            "previous_response_id": None,
            "service_tier": "auto",
            "status": status,
            "text": body.text,
            "truncation": "disabled",
            "usage": None if deltas is None else self._response_usage(len(deltas)),
        }

    def _response_usage(self, n_generated: int) -> dict[str, Any]:
        n_prompt = self._prompt.n_tokens
        return {
            "input_tokens": n_prompt,
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": n_generated,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": n_prompt + n_generated,
        }


def _part(text: str) -> dict[str, Any]:
    return {"annotations": [], "text": text, "type": "output_text", "logprobs": []}


def _text_of(deltas: Iterable[Delta]) -> str:
    return "".join(delta.text for delta in deltas)

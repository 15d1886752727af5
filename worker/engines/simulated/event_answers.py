"""Answers whose streams are named events: Anthropic's messages and OpenAI's responses.

They have what gateway, worker and the vendors' SDKs read of them, and no more.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from functools import cached_property
from typing import Any

from worker.engines.simulated.generation import Delta
from worker.engines.simulated.text_answer import TextAnswer, encode, text_of

_STOP_REASONS = {"length": "max_tokens", "stop": "end_turn"}


class EventAnswer(TextAnswer):
    """Keeps its deltas: the last events sum them up."""

    @cached_property
    def _deltas(self) -> list[Delta]:
        return []

    def _usage(self, n_generated: int) -> dict[str, int]:
        n_prompt = self.n_prompt_tokens
        total = n_prompt + n_generated
        return {"input_tokens": n_prompt, "output_tokens": n_generated, "total_tokens": total}


class MessagesAnswer(EventAnswer):
    """A message of one text block."""

    def _opening(self) -> Iterable[bytes]:
        yield _named("message_start", message=self._whole([]))
        yield _named("content_block_start", index=0, content_block={"type": "text", "text": ""})

    def _event(self, delta: Delta) -> bytes:
        self._deltas.append(delta)
        text = {"type": "text_delta", "text": delta.text}
        return _named("content_block_delta", index=0, delta=text)

    def _closing(self) -> Iterable[bytes]:
        whole = self._whole(self._deltas)
        stop = {name: whole[name] for name in ("stop_reason", "stop_sequence")}
        yield _named("content_block_stop", index=0)
        yield _named("message_delta", delta=stop, usage=whole["usage"])
        yield _named("message_stop")

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        last = deltas[-1] if deltas else None
        sequence = last.stop_reason if last else None
        reason = _STOP_REASONS[last.finish_reason or "stop"] if last else None
        return {
            "id": f"chatcmpl-{self.response_id}",
            "type": "message",
            "role": "assistant",
            "content": [{"type": "text", "text": text_of(deltas)}] if deltas else [],
            "model": self.model,
            "stop_reason": "stop_sequence" if sequence else reason,
            "stop_sequence": sequence,
            "usage": self._usage(len(deltas)),
        }


class ResponsesAnswer(EventAnswer):
    """A response whose output is one message. The message's id is random, as vLLM's are."""

    @cached_property
    def _item_id(self) -> str:
        return f"msg_{uuid.uuid4().hex}"

    def _opening(self) -> Iterable[bytes]:
        begun = self._response([], "in_progress")
        yield _named("response.created", sequence_number=0, response=begun)
        yield _named("response.in_progress", sequence_number=1, response=begun)
        item = {**self._item([]), "status": "in_progress"}
        yield _named("response.output_item.added", sequence_number=2, output_index=0, item=item)
        yield self._at("content_part.added", 3, part=_output_text(""))

    def _event(self, delta: Delta) -> bytes:
        self._deltas.append(delta)
        return self._at("output_text.delta", 3 + len(self._deltas), delta=delta.text, logprobs=[])

    def _closing(self) -> Iterable[bytes]:
        whole = self._whole(self._deltas)
        yield _named("response.completed", sequence_number=4 + len(self._deltas), response=whole)

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        cut = deltas[-1].finish_reason == "length"
        return self._response(deltas, "incomplete" if cut else "completed")

    def _at(self, name: str, number: int, **fields: Any) -> bytes:
        place = {"item_id": self._item_id, "output_index": 0, "content_index": 0}
        return _named(f"response.{name}", sequence_number=number, **place, **fields)

    def _item(self, deltas: list[Delta]) -> dict[str, Any]:
        content = [_output_text(text_of(deltas))] if deltas else []
        fixed = {"type": "message", "role": "assistant", "status": "completed"}
        return {"id": self._item_id, **fixed, "content": content}

    def _response(self, deltas: list[Delta], status: str) -> dict[str, Any]:
        cut = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self.request.request_id or f"resp_{self.response_id}",
            "object": "response",
            "created_at": self.created,
            "status": status,
            "incomplete_details": cut,
            "model": self.model,
            "output": [self._item(deltas)] if deltas else [],
            "metadata": self.request.metadata,
            "background": False,
            "usage": self._usage(len(deltas)) if deltas else None,
        }


def _named(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), encode({"type": name, **fields}))


def _output_text(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

"""The simulated engine's responses, in vLLM 0.32's JSON: key names, key order and types.

They were taken from real vLLM; `tests/e2e/test_engine_conformance.py` runs on both engines. This
file has what all endpoints share; chat_response.py and completion_response.py have the rest.
"""

from __future__ import annotations

import asyncio
import json
import time
from abc import ABC, abstractmethod
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

from starlette.responses import Response
from starlette.types import Message, Send

from worker.engines.interface import JOURNAL
from worker.engines.simulated.delivery import DONE, event_bytes, event_stream, part, whole
from worker.engines.simulated.generation import TOKENS, Delta, Generation, Prompt
from worker.engines.simulated.request import Body, StreamOptions
from worker.engines.simulated.sampling import sampling

_FINGERPRINT = "simulated"
_TEXT_SENTINEL = "\0"
"""Marks where a delta's text goes in a chunk template; no id or name contains it."""


class GenerationResponse(ABC):
    """The response to a valid request: its generation, and the JSON made of its deltas.

    `prompts` are answered in one call each, with at most `limits` tokens; `logprobs` is how many
    alternatives each token gets, None for no logprobs.
    """

    _id_prefix: str
    _object: str
    _chunk_object: str
    _running_usage_details: ClassVar[dict[str, None]]

    def __init__(
        self,
        body: Body,
        response_id: str,
        model: str,
        *,
        prompts: list[Prompt],
        logprobs: int | None,
        limits: list[int],
    ) -> None:
        options = body.stream_options or StreamOptions()
        how = sampling(body, logprobs)
        self.stream = bool(body.stream)
        self.generation = Generation(stream=self.stream, journal=JOURNAL.get())
        for call, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            self.generation.add(call, prompt, how, limit)
        self._head = {
            "id": f"{self._id_prefix}-{response_id}",
            "object": self._chunk_object if self.stream else self._object,
            "created": int(time.time()),
            "model": model,
        }
        self._prompts = prompts
        self._n = how.n
        self._logprobs = logprobs
        self._with_ids = bool(body.return_token_ids)
        self._include_usage = bool(options.include_usage)
        self._running_usage = self._include_usage and bool(options.continuous_usage_stats)
        self._n_tokens = [0] * len(self.generation.sequences)
        """Generated so far, by choice."""
        self._templates = self._make_templates()

    async def send_stream(self, send: Send) -> None:
        """Send the response as server-sent events, each in a body message of its own."""
        async with event_stream(send, last=DONE):
            deltas = await self.generation.next_deltas()
            for chunk in self._opening_chunks():
                await send(_event(dump(chunk)))
            while deltas:
                for delta in deltas:
                    await send(_event(self._encode(delta)))
                if len(self._templates) == 1 and self.generation.journal is not None:
                    self.generation.interceptor = self._intercept
                deltas = await self.generation.next_deltas()
            if self._include_usage:
                usage = self._usage(self._prompts, sum(self._n_tokens))
                last = {"choices": [], "usage": usage, "system_fingerprint": _FINGERPRINT}
                await send(_event(dump({**self._head, **last})))

    async def full(self) -> Response:
        """The response in one piece."""
        return await whole(self.generation, self._body)

    async def _body(self, deltas: list[Delta]) -> Response:
        by_choice: list[list[Delta]] = [[] for _ in self._n_tokens]
        for delta in deltas:
            by_choice[delta.choice].append(delta)
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        rest = {
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": {**self._usage(self._prompts, len(deltas)), **details},
            **self._trailing_fields(),
        }
        # In parts, because it may have tens of megabytes: other requests go on meanwhile.
        parts = [dump(self._head).removesuffix("}").encode() + b',"choices":[']
        for number, of_one in enumerate(by_choice):
            parts.append((b"," if number else b"") + self._choice_json(of_one).encode())
            if self._logprobs is not None:
                await asyncio.sleep(0)
        parts.append(b"]," + dump(rest).removeprefix("{").encode())
        return Response(b"".join(parts), media_type="application/json")

    def _choice_json(self, deltas: list[Delta]) -> str:
        """A choice of a full response, from all its deltas."""
        return dump(self._choice(deltas))

    def _make_templates(self) -> list[tuple[str, str]]:
        """By choice, a chunk before and after its text; empty if chunks differ in more."""
        if not self.stream or self._logprobs is not None or self._with_ids or self._running_usage:
            return []
        whole = [
            dump(self._chunk(Delta(choice, (), _TEXT_SENTINEL)))
            for choice in range(len(self._n_tokens))
        ]
        parts = [chunk.partition(quote(_TEXT_SENTINEL)) for chunk in whole]
        return [(before, after) for before, _, after in parts]

    def _intercept(self, delta: Delta) -> bool:
        """Send a delta's chunk past the request's task, as vLLM's plain streams do (stream.py).

        False for the last delta, which the task has to handle.
        """
        if delta.finish_reason is not None:
            return False
        assert self.generation.journal is not None, "checked before the interceptor was set"
        self.generation.journal.chunk(event_bytes(self._encode(delta)))
        return True

    def _encode(self, delta: Delta) -> str:
        self._n_tokens[delta.choice] += 1
        if delta.finish_reason is None and self._templates:
            before, after = self._templates[delta.choice]
            return before + quote(delta.text) + after
        return dump(self._chunk(delta))

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._chunk_choice(delta)]}
        if self._running_usage:
            prompt = self._prompts[delta.choice // self._n]
            usage = self._usage([prompt], self._n_tokens[delta.choice])
            chunk["usage"] = {**usage, **self._running_usage_details}
        if delta.finish_reason is not None and not self._include_usage:
            chunk["system_fingerprint"] = _FINGERPRINT
        return chunk

    @staticmethod
    def _usage(prompts: list[Prompt], n_generated: int) -> dict[str, int]:
        n_prompt = sum(prompt.n_tokens for prompt in prompts)
        return {
            "prompt_tokens": n_prompt,
            "total_tokens": n_prompt + n_generated,
            "completion_tokens": n_generated,
        }

    def _ids(self, deltas: list[Delta]) -> list[int] | None:
        return [token for delta in deltas for token in delta.token_ids] if self._with_ids else None

    @abstractmethod
    def _opening_chunks(self) -> list[dict[str, Any]]:
        """The chunks that a stream sends just before its first token."""

    @abstractmethod
    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        """The choice in a stream's chunk."""

    @abstractmethod
    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        """A choice of a full response, from all its deltas."""

    @abstractmethod
    def _trailing_fields(self) -> dict[str, Any]:
        """The fields of a full response that follow `usage`."""


def ranked_tokens(token: int, n: int) -> list[tuple[str, float]]:
    """`n` tokens and their logprobs, best first, `token` being the best; always the same."""
    best = -0.25 - token % 8 / 4
    return [(TOKENS[(token + rank) % len(TOKENS)], best - rank) for rank in range(n)]


def dump(value: dict[str, Any]) -> str:
    """As vLLM writes JSON."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _event(data: str) -> Message:
    return part(event_bytes(data))

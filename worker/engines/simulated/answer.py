"""Answers of the simulated engine in vLLM 0.32's JSON: key names, key order and types.

They were taken from real vLLM; `tests/e2e/test_engine_conformance.py` runs over both.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from json.encoder import encode_basestring as quote
from typing import Any, ClassVar

from starlette.responses import JSONResponse, Response
from starlette.types import Message, Send

from worker.engines.protocol import JOURNAL
from worker.engines.simulated.batch import (
    TOKENS,
    Delta,
    Disconnected,
    EngineDeadError,
    Generation,
    Prompt,
)
from worker.engines.simulated.request import (
    Body,
    ChatBody,
    CompletionBody,
    StreamOptions,
    error_body,
    room,
    sampling,
)

DEAD = error_body(
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "InternalServerError",
    None,
    500,
)
"""What a dead engine answers."""
_FINGERPRINT = "simulated"
_TEXT_HERE = "\0"
"""Stands for a delta's text while a chunk is made into a template; no id or name contains it."""


class Answer(ABC):
    """A valid request: its generation, and the JSON of what that says."""

    _id_prefix: str
    _object: str
    _chunk_object: str
    _running_usage_details: ClassVar[dict[str, None]]

    def __init__(
        self,
        asked: Body,
        answer_id: str,
        model: str,
        *,
        prompts: list[Prompt],
        logprobs: int | None,
        limits: list[int],
    ) -> None:
        options = asked.stream_options or StreamOptions()
        how = sampling(asked, logprobs)
        self.stream = bool(asked.stream)
        self.generation = Generation(stream=self.stream, journal=JOURNAL.get())
        for call, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            self.generation.add(call, prompt, how, limit)
        self._head = {
            "id": f"{self._id_prefix}-{answer_id}",
            "object": self._chunk_object if self.stream else self._object,
            "created": int(time.time()),
            "model": model,
        }
        self._prompts = prompts
        self._n = how.n
        self._logprobs = logprobs
        self._with_ids = bool(asked.return_token_ids)
        self._include_usage = bool(options.include_usage)
        self._running_usage = self._include_usage and bool(options.continuous_usage_stats)
        self._n_tokens = [0] * len(self.generation.sequences)
        """Generated so far, by choice."""
        self._templates = self._make_templates()

    async def send_stream(self, send: Send) -> None:
        """Server-sent events, each in a body message of its own."""
        content_type = (b"content-type", b"text/event-stream; charset=utf-8")
        await send({"type": "http.response.start", "status": 200, "headers": [content_type]})
        try:
            deltas = await self.generation.take()
            for chunk in self._first_chunks():
                await send(_event(_dump(chunk)))
            while deltas:
                for delta in deltas:
                    await send(_event(self._encode(delta)))
                if len(self._templates) == 1 and self.generation.journal is not None:
                    self.generation.tap = self._pass_on
                deltas = await self.generation.take()
            if self._include_usage:
                usage = self._usage(self._prompts, sum(self._n_tokens))
                last = {"choices": [], "usage": usage, "system_fingerprint": _FINGERPRINT}
                await send(_event(_dump({**self._head, **last})))
        except Disconnected:
            return
        except EngineDeadError:
            await send(_event(json.dumps(DEAD)))
        await send(_event("[DONE]"))
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def whole(self) -> Response:
        """The answer in one piece. A client that has gone is sent 200 and `null`, as by vLLM."""
        try:
            deltas = await self.generation.take()
        except EngineDeadError:
            return JSONResponse(DEAD, 500)
        except Disconnected:
            return JSONResponse(None)
        by_choice: list[list[Delta]] = [[] for _ in self._n_tokens]
        for delta in deltas:
            by_choice[delta.choice].append(delta)
        details = {"prompt_tokens_details": None, "completion_tokens_details": None}
        body = {
            **self._head,
            "choices": [self._choice(of_one) for of_one in by_choice],
            "service_tier": None,
            "system_fingerprint": _FINGERPRINT,
            "usage": {**self._usage(self._prompts, len(deltas)), **details},
        }
        return JSONResponse({**body, **self._after_usage()})

    def _make_templates(self) -> list[tuple[str, str]]:
        """By choice, a chunk before and after the text of its delta; none if more differs."""
        if not self.stream or self._logprobs is not None or self._with_ids or self._running_usage:
            return []
        whole = [
            _dump(self._chunk(Delta(choice, (), _TEXT_HERE)))
            for choice in range(len(self._n_tokens))
        ]
        parts = [chunk.partition(quote(_TEXT_HERE)) for chunk in whole]
        return [(before, after) for before, _, after in parts]

    def _pass_on(self, delta: Delta) -> bool:
        """As vLLM with the worker's plain streams (vllm_stream.py)."""
        if delta.finish_reason is not None:
            return False
        assert self.generation.journal is not None, "has set this tap"
        self.generation.journal.chunk(_event_bytes(self._encode(delta)))
        return True

    def _encode(self, delta: Delta) -> str:
        self._n_tokens[delta.choice] += 1
        if delta.finish_reason is None and self._templates:
            before, after = self._templates[delta.choice]
            return before + quote(delta.text) + after
        return _dump(self._chunk(delta))

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
    def _first_chunks(self) -> list[dict[str, Any]]:
        """What a stream says just before its first token."""

    @abstractmethod
    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        """The choice of a stream's chunk."""

    @abstractmethod
    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        """A choice of a whole answer, from all its deltas."""

    @abstractmethod
    def _after_usage(self) -> dict[str, Any]:
        """The keys of a whole answer that follow `usage`."""


class ChatAnswer(Answer):
    _id_prefix = "chatcmpl"
    _object = "chat.completion"
    _chunk_object = "chat.completion.chunk"
    _running_usage_details: ClassVar[dict[str, None]] = {"completion_tokens_details": None}

    def __init__(self, asked: ChatBody, answer_id: str, model: str, max_model_len: int) -> None:
        prompt = asked.prompt()
        limit = asked.max_tokens
        if asked.max_completion_tokens is not None:
            limit = asked.max_completion_tokens
        super().__init__(
            asked,
            answer_id,
            model,
            prompts=[prompt],
            logprobs=asked.top_logprobs if asked.logprobs else None,
            limits=[room(prompt, limit, max_model_len)],
        )

    def _first_chunks(self) -> list[dict[str, Any]]:
        (prompt,) = self._prompts
        usage = {**self._usage([prompt], 0), **self._running_usage_details}
        return [
            {
                **self._head,
                "choices": [
                    {
                        "index": index,
                        "delta": {"role": "assistant", "content": ""},
                        "logprobs": None,
                        "finish_reason": None,
                    }
                ],
                **({"usage": usage} if self._running_usage else {}),
                "prompt_token_ids": prompt.token_ids if self._with_ids else None,
                "prompt_text": None,
            }
            for index in range(self._n)
        ]

    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        choice = {
            "index": delta.choice,
            "delta": {"content": delta.text},
            "logprobs": self._logprobs_of([delta]),
            "finish_reason": delta.finish_reason,
        }
        if delta.finish_reason is not None:
            choice["stop_reason"] = delta.stop_reason
        choice["token_ids"] = self._ids([delta])
        return choice

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        message = {
            "role": "assistant",
            "content": "".join(delta.text for delta in deltas),
            "refusal": None,
            "annotations": None,
            "audio": None,
            "function_call": None,
            "reasoning": None,
        }
        return {
            "index": deltas[-1].choice,
            "message": message,
            "logprobs": self._logprobs_of(deltas),
            "finish_reason": deltas[-1].finish_reason,
            "stop_reason": deltas[-1].stop_reason,
            "token_ids": self._ids(deltas),
            "routed_experts": None,
        }

    def _after_usage(self) -> dict[str, Any]:
        (prompt,) = self._prompts
        return {
            "prompt_logprobs": None,
            "prompt_token_ids": prompt.token_ids if self._with_ids else None,
            "prompt_text": None,
            "kv_transfer_params": None,
            "ec_transfer_params": None,
            "metrics": None,
        }

    def _logprobs_of(self, deltas: list[Delta]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        content = []
        for token in (token for delta in deltas for token in delta.token_ids):
            ranked = [
                {"token": text, "logprob": logprob, "bytes": list(text.encode())}
                for text, logprob in _ranked(token, max(1, self._logprobs))
            ]
            content.append({**ranked[0], "top_logprobs": ranked[: self._logprobs]})
        return {"content": content}


class CompletionAnswer(Answer):
    _id_prefix = "cmpl"
    _object = _chunk_object = "text_completion"
    _running_usage_details: ClassVar[dict[str, None]] = {}

    def __init__(
        self, asked: CompletionBody, answer_id: str, model: str, max_model_len: int
    ) -> None:
        prompts = asked.prompts()
        max_tokens = 16 if asked.max_tokens is None else asked.max_tokens
        super().__init__(
            asked,
            answer_id,
            model,
            prompts=prompts,
            logprobs=asked.logprobs,
            limits=[room(prompt, max_tokens, max_model_len) for prompt in prompts],
        )
        self._offsets = [0] * len(self._n_tokens)
        """Characters of the tokens so far, by choice."""

    def _first_chunks(self) -> list[dict[str, Any]]:
        return []

    def _chunk_choice(self, delta: Delta) -> dict[str, Any]:
        first = self._n_tokens[delta.choice] == 1
        return {
            "index": delta.choice,
            "text": delta.text,
            "logprobs": self._logprobs_of([delta]),
            "finish_reason": delta.finish_reason,
            "stop_reason": delta.stop_reason,
            "prompt_token_ids": self._prompt_ids(delta.choice) if first else None,
            "token_ids": self._ids([delta]),
        }

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        return {
            "index": deltas[-1].choice,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": self._logprobs_of(deltas),
            "finish_reason": deltas[-1].finish_reason,
            "stop_reason": deltas[-1].stop_reason,
            "token_ids": self._ids(deltas),
            "prompt_logprobs": None,
            "prompt_token_ids": self._prompt_ids(deltas[-1].choice),
            "routed_experts": None,
        }

    def _after_usage(self) -> dict[str, Any]:
        return {"kv_transfer_params": None, "ec_transfer_params": None, "metrics": None}

    def _prompt_ids(self, choice: int) -> list[int] | None:
        return self._prompts[choice // self._n].token_ids if self._with_ids else None

    def _logprobs_of(self, deltas: list[Delta]) -> dict[str, Any] | None:
        if self._logprobs is None:
            return None
        offsets, logprobs, texts, tops = [], [], [], []
        for delta in deltas:
            for token in delta.token_ids:
                ranked = _ranked(token, max(1, self._logprobs))
                offsets.append(self._offsets[delta.choice])
                texts.append(ranked[0][0])
                logprobs.append(ranked[0][1])
                tops.append(dict(ranked))
                self._offsets[delta.choice] += len(ranked[0][0])
        return {
            "text_offset": offsets,
            "token_logprobs": logprobs,
            "tokens": texts,
            "top_logprobs": tops,
        }


def _ranked(token: int, n: int) -> list[tuple[str, float]]:
    """The token and the `n` - 1 next likely ones, best first; invented, but always the same."""
    best = -0.25 - token % 8 / 4
    return [(TOKENS[(token + rank) % len(TOKENS)], best - rank) for rank in range(n)]


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _event(data: str) -> Message:
    return {
        "type": "http.response.body",
        "body": _event_bytes(data),
        "more_body": True,
    }


def _event_bytes(data: str) -> bytes:
    return f"data: {data}\n\n".encode()

"""Answers that consist of choices: chat completions and completions."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cached_property, lru_cache
from typing import Any

import msgspec

from worker.engines.simulated.generation import TOKENS, Delta
from worker.engines.simulated.text_answer import TextAnswer, encode, text_of

_TEXT_SENTINEL = "\0"
"""Marks where a delta's text goes in a chunk's template; no id or name contains it."""


class ChatAnswer(TextAnswer):
    """The answer to a conversation, or to several: one choice for each."""

    id_prefix = "chatcmpl"
    kinds = ("chat.completion", "chat.completion.chunk")
    """`object` of a whole answer, and of a chunk."""

    def _said(self, text: str) -> dict[str, Any]:
        """The part of a choice that has its text."""
        if self.request.stream:
            return {"delta": {"content": text}}
        return {"message": {"role": "assistant", "content": text}}

    def _logprobs(self, tokens: list[int], n: int) -> dict[str, Any]:
        """The logprobs of these tokens, with `n` alternatives."""
        return {"content": [_chat_logprobs(token, n) for token in tokens]}

    def _opening(self) -> Iterable[bytes]:
        for index in range(len(self._n_tokens)):
            said = {"role": "assistant", "content": ""}
            choice = {"index": index, "delta": said, "logprobs": None, "finish_reason": None}
            yield _data({**self._head, "choices": [choice]})

    @cached_property
    def _head(self) -> dict[str, Any]:
        return {
            "id": f"{self.id_prefix}-{self.response_id}",
            "object": self.kinds[bool(self.request.stream)],
            "created": self.created,
            "model": self.model,
        }

    @cached_property
    def _n_tokens(self) -> list[int]:
        """Generated so far, by choice."""
        return [0] * len(self.generation.sequences)

    @cached_property
    def _templates(self) -> list[tuple[bytes, bytes]]:
        """By choice, a chunk before and after its text; empty if chunks differ in more."""
        request = self.request
        if (
            request.n_alternatives is not None
            or request.return_token_ids
            or request.with_usage("continuous_usage_stats")
        ):
            return []
        n_choices = len(self._n_tokens)
        chunks = [_data(self._chunk(Delta(each, (), _TEXT_SENTINEL))) for each in range(n_choices)]
        parts = [chunk.partition(encode(_TEXT_SENTINEL)) for chunk in chunks]
        return [(before, after) for before, _, after in parts]

    def _event(self, delta: Delta) -> bytes:
        self._n_tokens[delta.choice] += 1
        if delta.finish_reason is None and self._templates:
            before, after = self._templates[delta.choice]
            return before + encode(delta.text) + after
        return _data(self._chunk(delta))

    def _closing(self) -> Iterable[bytes]:
        if self.request.with_usage():
            usage = self._usage(sum(self._n_tokens))
            yield _data({**self._head, "choices": [], "usage": usage})
        yield b"data: [DONE]\n\n"

    def _whole(self, deltas: list[Delta]) -> dict[str, Any]:
        by_choice: list[list[Delta]] = [[] for _ in self._n_tokens]
        for delta in deltas:
            by_choice[delta.choice].append(delta)
        choices = [self._choice(each) for each in by_choice]
        return {**self._head, "choices": choices, "usage": self._usage(len(deltas))}

    def _interceptor(self) -> Callable[[Delta], bool] | None:
        plain = len(self._templates) == 1 and self.generation.journal is not None
        return self._intercept if plain else None

    def _intercept(self, delta: Delta) -> bool:
        """Send a delta's chunk past the request's task; not the last, which the task handles."""
        if delta.finish_reason is not None:
            return False
        assert self.generation.journal is not None, "checked in _interceptor"
        self.generation.journal.chunk(self._event(delta))
        return True

    def _usage(self, n_generated: int) -> dict[str, Any]:
        usage: dict[str, Any] = {
            "prompt_tokens": self.n_prompt_tokens,
            "total_tokens": self.n_prompt_tokens + n_generated,
            "completion_tokens": n_generated,
        }
        if (cached := self.cached_tokens) is not None:
            usage["prompt_tokens_details"] = {"cached_tokens": cached}
        return usage

    def _chunk(self, delta: Delta) -> dict[str, Any]:
        chunk = {**self._head, "choices": [self._choice([delta])]}
        if self.request.with_usage("continuous_usage_stats"):
            chunk["usage"] = self._usage(self._n_tokens[delta.choice])
        return chunk

    def _choice(self, deltas: list[Delta]) -> dict[str, Any]:
        """A choice, from all its deltas or from one."""
        last, tokens = deltas[-1], [token for delta in deltas for token in delta.token_ids]
        n = self.request.n_alternatives
        choice = {
            "index": last.choice,
            **self._said(text_of(deltas)),
            "logprobs": None if n is None else self._logprobs(tokens, n),
            "finish_reason": last.finish_reason,
        }
        if last.finish_reason is not None:
            choice["stop_reason"] = last.stop_reason
        return {**choice, "token_ids": tokens if self.request.return_token_ids else None}


class CompletionAnswer(ChatAnswer):
    """The answer to a prompt, or to several."""

    id_prefix = "cmpl"
    kinds = ("text_completion", "text_completion")
    default_limit = 16

    def _opening(self) -> Iterable[bytes]:
        return ()

    def _said(self, text: str) -> dict[str, Any]:
        return {"text": text}

    def _logprobs(self, tokens: list[int], n: int) -> dict[str, Any]:
        ranked = [_ranked(token, n) for token in tokens]
        return {
            "token_logprobs": [each[0][1] for each in ranked],
            "tokens": [each[0][0] for each in ranked],
            "top_logprobs": [dict(each) for each in ranked],
        }


def _ranked(token: int, n: int) -> list[tuple[str, float]]:
    """`n` tokens, at least one, and their logprobs, best first, `token` being the best."""
    best = -0.25 - token % 8 / 4
    return [(TOKENS[(token + rank) % len(TOKENS)], best - rank) for rank in range(max(1, n))]


@lru_cache(2048)
def _chat_logprobs(token: int, n: int) -> msgspec.Raw:
    """As JSON, made once for each token: an answer has many, and is made on the event loop."""
    ranked = [
        {"token": text, "logprob": logprob, "bytes": list(text.encode())}
        for text, logprob in _ranked(token, n)
    ]
    return msgspec.Raw(encode({**ranked[0], "top_logprobs": ranked[:n]}))


def _data(value: dict[str, Any]) -> bytes:
    return b"data: %b\n\n" % encode(value)

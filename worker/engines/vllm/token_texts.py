"""Keeps the text of each token for log probabilities.

vLLM decodes every alternative of every token by itself, on the event loop: for the prompt of one
request that may be tens of thousands, and all other requests wait. A token's text is always the
same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from shared.platform.fast_paths import FastPath, parameters_differ

_NAME = "convert_ids_list_to_tokens"


def _problem() -> str:
    from vllm.v1.engine import logprobs

    convert = getattr(logprobs, _NAME, None)
    if convert is None:
        return f"vllm.v1.engine.logprobs has no {_NAME}"
    return parameters_differ(convert, "tokenizer token_ids")


TEXTS = FastPath("vLLM's texts of log probabilities", _problem)

Convert = Callable[[Any, list[int]], list[str]]


def install(tokenizer: Any) -> None:
    """Keep the texts of this tokenizer's tokens, where fast paths are enabled."""
    from vllm.v1.engine import logprobs

    if TEXTS.enabled():
        setattr(logprobs, _NAME, keeping(getattr(logprobs, _NAME), tokenizer))


def keeping(convert: Convert, tokenizer: Any) -> Convert:
    """A `convert` that looks each token of `tokenizer` up once."""
    texts: dict[int, str] = {}

    def known(used: Any, token_ids: list[int]) -> list[str]:
        if used is not tokenizer:
            return convert(used, token_ids)
        missing = list(set(token_ids).difference(texts))
        if missing:
            texts.update(zip(missing, convert(used, missing), strict=True))
        return [texts[token] for token in token_ids]

    return known

"""Keeps the text of each token for log probabilities.

vLLM decodes every alternative of every token by itself, on the event loop: 50 microseconds for each
of the thousands that one request may have. A token's text is always the same.
"""

from __future__ import annotations

from typing import Any


def install(tokenizer: Any) -> None:
    """Have vLLM decode each token of this tokenizer once."""
    from vllm.v1.engine import logprobs

    convert, texts = logprobs.convert_ids_list_to_tokens, dict[int, str]()

    def known(used: Any, token_ids: list[int]) -> list[str]:
        if used is not tokenizer:
            found: list[str] = convert(used, token_ids)
            return found
        missing = list(set(token_ids).difference(texts))
        if missing:
            texts.update(zip(missing, convert(used, missing), strict=True))
        return [texts[token] for token in token_ids]

    logprobs.convert_ids_list_to_tokens = known

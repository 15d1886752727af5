"""How many prompts one call may bring, and how long they may be.

vLLM refuses a prompt that is longer than its model's context, but it takes any number of them, and
any length if it is told to truncate: the worker then serves nobody else until all are tokenized.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from shared.errors import BadRequest

_CHARS_PER_TOKEN = 16
"""More than any tokenizer's tokens have on average: an honest text in the context has fewer."""
_ANY_MODEL_CHARS = 1 << 16
"""Short enough for every model."""


def sequences(fields: Mapping[str, Any], at_most: int) -> int:
    """How many sequences this body has the engine run: prompts times choices. Raises BadRequest."""
    prompt, n = fields.get("prompt"), fields.get("n")
    prompts = 1
    # A list of numbers is one prompt: its tokens.
    if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int):
        prompts = len(prompt)
    if prompts > at_most:
        raise BadRequest(f"A call may have at most {at_most} prompts, not {prompts}.", "prompt")
    choices = n if isinstance(n, int) and n > 1 else 1
    if prompts > 1 and prompts * choices > at_most:
        raise BadRequest(
            f"Prompts times `n` may be at most {at_most} in one call, not {prompts} * {choices}.",
            "n",
        )
    return prompts * choices


def truncated_chars(fields: Mapping[str, Any]) -> int:
    """Characters of the longest prompt that vLLM is asked to truncate; 0 if it is not asked to."""
    if fields.get("truncate_prompt_tokens") is None:
        return 0
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    lengths = [len(each) for each in prompts if isinstance(each, str)]
    messages = fields.get("messages")
    lengths.append(sum(map(len, _texts(messages))) if isinstance(messages, list) else 0)
    return max(lengths)


def check_truncated(chars: int, card: Mapping[str, Any]) -> None:
    """Refuse a prompt that is far too long for the model of this card. Raises BadRequest."""
    context = card.get("max_model_len")
    if chars <= _ANY_MODEL_CHARS or not isinstance(context, int):
        return
    at_most = max(_ANY_MODEL_CHARS, context * _CHARS_PER_TOKEN)
    if chars > at_most:
        raise BadRequest(
            f"A prompt of {chars} characters is too long to be truncated here: the model's context "
            f"is {context} tokens; send at most {at_most} characters.",
            "truncate_prompt_tokens",
        )


def _texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text

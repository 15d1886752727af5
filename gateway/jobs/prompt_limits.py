"""How many prompts or messages one call may bring, and how long they may be.

vLLM refuses a prompt that is longer than its model's context, but only when it has taken all of it
in; it takes a text of any length if it is told to truncate it. The worker's event loop, and with it
everybody's tokens, waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shared.api.errors import BadRequest

_CHARS_PER_TOKEN = 16
"""More than any tokenizer's tokens have on average: an honest text in the context has fewer."""
_ANY_MODEL = 1 << 16
"""Tokens or characters that are left to vLLM to judge, whatever the model."""


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


def check_messages(fields: Mapping[str, Any], at_most: int) -> None:
    """Raises BadRequest if a conversation has too many messages."""
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > at_most:
        raise BadRequest(
            f"A conversation may have at most {at_most} messages, not {len(messages)}.", "messages"
        )


class Longest(NamedTuple):
    """Of the prompts of one body."""

    tokens: int
    """In the longest prompt of token ids."""
    truncated_chars: int
    """In the longest text that vLLM is asked to truncate; 0 if it is not asked to."""


def longest(fields: Mapping[str, Any]) -> Longest:
    """How long the longest prompts are."""
    prompt, messages = fields.get("prompt"), fields.get("messages")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    lists = [prompts, *(each for each in prompts if isinstance(each, list))]
    tokens = max(len(ids) if ids and isinstance(ids[0], int) else 0 for ids in lists)
    if fields.get("truncate_prompt_tokens") is None:
        return Longest(tokens, 0)
    texts = [len(each) for each in prompts if isinstance(each, str)]
    conversation = sum(map(len, _texts(messages))) if isinstance(messages, list) else 0
    return Longest(tokens, max(conversation, *texts, 0))


def check_length(prompt: Longest, card: Mapping[str, Any]) -> None:
    """Refuse what is far too long for the model of this card. Raises BadRequest."""
    context = card.get("max_model_len")
    if not isinstance(context, int):
        return
    if prompt.tokens > max(_ANY_MODEL, context):
        raise BadRequest(
            f"This model's maximum context length is {context} tokens. However, your prompt "
            f"contains {prompt.tokens} tokens.",
            "prompt",
        )
    most_chars = max(_ANY_MODEL, context * _CHARS_PER_TOKEN)
    if prompt.truncated_chars > most_chars:
        raise BadRequest(
            f"A prompt of {prompt.truncated_chars} characters is too long to be truncated here: "
            f"the model's context is {context} tokens; send at most {most_chars} characters.",
            "truncate_prompt_tokens",
        )


def _texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text

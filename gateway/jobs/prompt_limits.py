"""Limits on a request's input: how many prompts or messages one call may have, and how long.

vLLM refuses a prompt that is longer than its model's context, but only after it has tokenized all
of it, and it accepts a text of any length if it is asked to truncate it. The worker's event loop,
and with it every other job's tokens, waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from shared.api.endpoints import InputKind, Policy
from shared.api.errors import BadRequest
from shared.platform.settings import Settings

_CHARS_PER_TOKEN = 16
"""More than the average of any tokenizer: a normal text that fits into the context has fewer."""
_ALWAYS_ALLOWED = 1 << 16
"""Tokens or characters that vLLM may check itself, whatever the model's context."""


class PromptSize(NamedTuple):
    """The size of the longest prompt in one body."""

    tokens: int
    """Of the longest prompt that is a list of token ids; 0 if there is none."""
    truncated_chars: int
    """Of the longest text that vLLM is asked to truncate; 0 if it is not asked to."""


def check_input(policy: Policy, fields: Mapping[str, Any], settings: Settings) -> None:
    """Raises BadRequest if a body has too many messages, prompts, or prompts times `n`."""
    n_prompts = 1
    if policy.input is InputKind.MESSAGES:
        check_messages(fields, settings.max_messages)
    else:
        n_prompts = count_prompts(fields, settings.max_sequences)
    if policy.choices:
        check_choices(fields, n_prompts, settings.max_sequences)


def check_messages(fields: Mapping[str, Any], limit: int) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages."""
    messages = fields.get("messages")
    if isinstance(messages, list) and len(messages) > limit:
        raise BadRequest(
            f"A conversation may have at most {limit} messages, not {len(messages)}.", "messages"
        )


def count_prompts(fields: Mapping[str, Any], limit: int) -> int:
    """How many prompts the body has. Raises BadRequest if there are more than `limit`."""
    prompt = fields.get("prompt")
    # A list of numbers is one prompt: its tokens.
    many = isinstance(prompt, list) and prompt and not isinstance(prompt[0], int)
    n_prompts = len(prompt) if isinstance(prompt, list) and many else 1
    if n_prompts > limit:
        raise BadRequest(f"A call may have at most {limit} prompts, not {n_prompts}.", "prompt")
    return n_prompts


def check_choices(fields: Mapping[str, Any], n_prompts: int, limit: int) -> None:
    """Raises BadRequest if several prompts times `n` are more than `limit` sequences.

    vLLM itself limits `n` for a single prompt.
    """
    n = fields.get("n")
    choices = n if isinstance(n, int) and n > 1 else 1
    if n_prompts > 1 and n_prompts * choices > limit:
        raise BadRequest(
            f"Prompts times `n` may be at most {limit} in one call, not {n_prompts} * {choices}.",
            "n",
        )


def prompt_size(kind: InputKind, fields: Mapping[str, Any]) -> PromptSize:
    """The size of the longest prompt of a body."""
    truncated = fields.get("truncate_prompt_tokens") is not None
    if kind is InputKind.MESSAGES:
        messages = fields.get("messages") if truncated else None
        return PromptSize(0, sum(map(len, _texts(messages))) if isinstance(messages, list) else 0)
    prompt = fields.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    lists = [prompts, *(each for each in prompts if isinstance(each, list))]
    tokens = max(len(ids) if ids and isinstance(ids[0], int) else 0 for ids in lists)
    texts = [len(each) for each in prompts if isinstance(each, str)] if truncated else []
    return PromptSize(tokens, max(texts, default=0))


def check_prompt_size(prompt: PromptSize, card: Mapping[str, Any]) -> None:
    """Raises BadRequest if a prompt is far too long for the model with this card (vLLM's)."""
    context = card.get("max_model_len")
    if not isinstance(context, int):
        return
    if prompt.tokens > max(_ALWAYS_ALLOWED, context):
        raise BadRequest(
            f"This model's maximum context length is {context} tokens. However, your prompt "
            f"contains {prompt.tokens} tokens.",
            "prompt",
        )
    most_chars = max(_ALWAYS_ALLOWED, context * _CHARS_PER_TOKEN)
    if prompt.truncated_chars > most_chars:
        raise BadRequest(
            f"A prompt of {prompt.truncated_chars} characters is too long to be truncated: the "
            f"model's context is {context} tokens; send at most {most_chars} characters.",
            "truncate_prompt_tokens",
        )


def _texts(messages: list[Any]) -> Iterator[str]:
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else None
        for part in content if isinstance(content, list) else [content]:
            text = part.get("text") if isinstance(part, dict) else part
            if isinstance(text, str):
                yield text

"""Limits on a request's input: the number and length of its prompts, messages and documents.

vLLM refuses a prompt that is longer than its model's context, but only after it has tokenized all
of it, and it accepts a text of any length if it is asked to truncate it, or only to tokenize it.
The worker's event loop, and with it every other job's tokens, waits meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from gateway.core.answer_size import check_answer_size
from gateway.gateway_settings import GatewaySettings
from shared.api.endpoint import InputKind, Policy
from shared.api.field_policy import MAX_LOGPROBS, MAX_LOGPROBS_AT_ONCE
from shared.job.errors import BadRequest

_CHARS_PER_TOKEN = 16
"""More than the average of any tokenizer: a normal text that fits into the context has fewer."""
_ALWAYS_ALLOWED = 1 << 16
"""Tokens or characters that vLLM may check itself, whatever the model's context."""
_PAIRS = ("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2")
_FIELDS: dict[InputKind, tuple[str, ...]] = {
    InputKind.MESSAGES: ("messages",),
    InputKind.CONVERSATIONS: ("messages",),
    InputKind.BLOCKS: ("messages",),
    InputKind.RESPONSE: ("input",),
    InputKind.PROMPT: ("prompt",),
    InputKind.INPUT: ("input", "messages"),
    InputKind.DOCUMENTS: ("query", "documents"),
    InputKind.PAIRS: _PAIRS,
    InputKind.ITEMS: ("query", "items"),
    InputKind.TEXTS: ("texts", "images", "inputs"),
    InputKind.TEXT_TO_TOKENIZE: ("prompt", "messages"),
    InputKind.TOKENS: ("tokens",),
    InputKind.ANY: ("messages", "prompt", "input", "query", *_PAIRS),
    InputKind.AUDIO: (),
    InputKind.QUESTIONS: ("images", "audio", "videos"),
}
"""The fields that hold the input. vLLM ignores fields that are not an endpoint's."""
_TRUNCATION = ("truncate_prompt_tokens", "max_tokens_per_query", "max_tokens_per_doc")
"""Fields that ask vLLM to truncate the input."""
MAX_SEQUENCES = 512
"""Prompts times `n`, in one completions request."""
MAX_MESSAGES = 2000
"""Messages or items of one conversation: 1,000 items of a response take vLLM about 0.1 s, in which
its other answers wait."""
MAX_ANSWER_BYTES = 32 << 20
"""Of the largest answer that a request may ask for: sequences x tokens x log probabilities,
estimated (answer_size.py)."""


class PromptSize(NamedTuple):
    """The size of the longest prompt in one body."""

    tokens: int
    """Of the longest prompt that is a list of token ids; 0 if there is none."""
    truncated_chars: int
    """Of the longest text that vLLM is asked to truncate or to tokenize; 0 if there is none."""
    param: str = _TRUNCATION[0]
    """The field that asks for it."""


def check_input(policy: Policy, fields: Mapping[str, Any], settings: GatewaySettings) -> None:
    """Raises BadRequest for too many messages, inputs or choices, or too large an answer."""
    limit = MAX_SEQUENCES if policy.choices else settings.max_inputs
    most = 1
    for name in _FIELDS[policy.input]:
        value = fields.get(name)
        if isinstance(value, list) and policy.input is InputKind.RESPONSE:
            check_messages(name, value, MAX_MESSAGES)
        elif isinstance(value, list):
            most = max(most, count_inputs(name, value, limit, MAX_MESSAGES))
    if policy.choices:
        check_choices(fields, most, limit)
    if policy.choices or policy.input is InputKind.RESPONSE:
        check_answer_size(
            fields,
            most,
            MAX_LOGPROBS,
            MAX_ANSWER_BYTES,
            MAX_LOGPROBS_AT_ONCE,
        )


def count_inputs(name: str, value: list[Any], limit: int, max_messages: int) -> int:
    """How many prompts, documents or conversations a field has. Raises BadRequest if too many."""
    first = value[0] if value else None
    if isinstance(first, int):  # one prompt: its tokens
        return 1
    if _is_message(first) or (name == "messages" and not isinstance(first, list)):
        check_messages(name, value, max_messages)
        return 1
    if len(value) > limit:
        raise BadRequest(f"A call may have at most {limit} {name}, not {len(value)}.", name)
    if isinstance(first, list) and first and isinstance(first[0], dict):
        for each in value:
            if isinstance(each, list):
                check_messages(name, each, max_messages)
    return max(1, len(value))


def check_messages(name: str, messages: list[Any], limit: int) -> None:
    """Raises BadRequest if a conversation has more than `limit` messages."""
    if len(messages) > limit:
        raise BadRequest(
            f"A conversation may have at most {limit} messages, not {len(messages)}.", name
        )


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
    param = _truncated_by(kind, fields)
    tokens, chars = 0, 0
    for name in _FIELDS[kind]:
        value = fields.get(name)
        if name != "messages":
            tokens = max(tokens, _longest_token_list(value))
        if param and (name != "messages" or isinstance(value, list)):
            chars = max(chars, _longest_text(value))
    return PromptSize(tokens, chars, param) if chars else PromptSize(tokens, chars)


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
            f"A text of {prompt.truncated_chars} characters is too long to be tokenized: the "
            f"model's context is {context} tokens; send at most {most_chars} characters.",
            prompt.param,
        )


def _truncated_by(kind: InputKind, fields: Mapping[str, Any]) -> str:
    """Why vLLM accepts a text of any length: the field that asks for it; empty if it does not."""
    if kind is InputKind.TEXT_TO_TOKENIZE:
        return "messages" if "messages" in fields else "prompt"
    if kind is InputKind.TEXTS:  # Cohere's default is END
        return "" if fields.get("truncate") == "NONE" else "texts"
    if kind is InputKind.RESPONSE:
        return "truncation" if fields.get("truncation") == "auto" else ""
    for name in _TRUNCATION:  # a generator is slower
        if fields.get(name):
            return name
    return ""


def _is_message(value: object) -> bool:
    return isinstance(value, dict) and "role" in value


def _longest_token_list(value: Any) -> int:
    if not isinstance(value, list) or not value:
        return 0
    if isinstance(value[0], int):
        return len(value)
    lists = (each for each in value if isinstance(each, list) and each)
    return max((len(each) for each in lists if isinstance(each[0], int)), default=0)


def _longest_text(value: Any) -> int:
    """Characters of the longest text; a conversation, and the parts of one content, are one."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict) or (isinstance(value, list) and value and _is_message(value[0])):
        return sum(map(len, _texts(value)))
    if isinstance(value, list):
        return max((_longest_text(each) for each in value if not isinstance(each, int)), default=0)
    return 0


def _texts(value: Any) -> Iterator[str]:
    """The texts of messages, contents and their parts."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, dict):
        yield from _texts(value.get("content"))
        yield from _texts(value.get("text"))

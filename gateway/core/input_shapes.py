"""The shapes of a request's lists: what is in them, and of which types.

vLLM tries each element of a list against all types that it may have, and notes what is wrong with
each of them: 233 errors for an item `{}` of a response, on the worker's event loop. So the gateway
stops at the first element that fits none. It is no stricter than vLLM: single values, and fields
that an endpoint does not have, are left to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gateway.core.elements import (
    Fields,
    all_are,
    each_is,
    either,
    integers,
    list_of,
    mapped,
    maybe,
    one_of,
    optional,
    refusal,
    text,
    text_values,
    texts,
    token_ids,
    typed,
    with_fields,
)
from gateway.core.message_shapes import (
    BREAKPOINT,
    check_block_messages,
    check_blocks,
    check_chats,
    check_conversations,
    check_items,
    check_messages,
)
from shared.api.endpoint import InputKind

Check = Callable[[str, Any], None]

_URL = with_fields({"url": text})
_SCORE_PARTS: Mapping[str, Fields] = {
    "text": {"text": text, "prompt_cache_breakpoint": optional(BREAKPOINT)},
    "image_url": {
        "prompt_cache_breakpoint": optional(BREAKPOINT),
        "image_url": with_fields({"url": text, "detail": optional(one_of("auto", "low", "high"))}),
    },
    "video_url": {"video_url": _URL},
    "image_embeds": {
        "image_embeds": maybe(either(text, mapped)),
        "uuid": maybe(text),
    },
}
_SCORED = either(text, with_fields({"content": list_of(typed(_SCORE_PARTS))}))
_COHERE_PARTS: Mapping[str, Fields] = {
    "text": {"text": text, "image_url": maybe(text_values)},
    "image_url": {"image_url": text_values, "text": maybe(text)},
}
_check_integers = all_are(integers, "a list of integers")
_check_texts = all_are(texts, "a list of texts")
_check_token_ids = all_are(token_ids, "a list of token ids: integers that are not negative")
_check_token_lists = each_is(token_ids, "a list of token ids: integers that are not negative")


def check_shapes(kind: InputKind, fields: Mapping[str, Any]) -> None:
    """Raises BadRequest for the first element of a list that vLLM would refuse."""
    checks = _SHAPES[kind]
    for name, value in fields.items():
        if (type(value) is list or type(value) is dict) and name in checks:
            checks[name](name, value)


def _check_prompts(name: str, value: Any) -> None:
    """Texts, token ids, or lists of token ids."""
    types = set(map(type, value))
    if types == {list}:
        _check_token_lists(name, value)
    elif not types <= {str}:
        _check_token_ids(name, value)


def _check_input(name: str, value: Any) -> None:
    """Of embeddings: texts, token ids, or conversations."""
    first = value[0] if type(value) is list and value else None
    inner = first[0] if type(first) is list and first else first
    (check_chats if type(inner) is dict else _check_prompts)(name, value)


def _check_scored(name: str, value: Any) -> None:
    """Texts, or objects with parts in `content`; one of them or several."""
    check = each_is if type(value) is list else all_are
    check(_SCORED, "a text or an object with `content`")(name, value)


_check_documents = each_is(text_values, "an object of texts")


def _check_any_documents(name: str, value: Any) -> None:
    first = value[0] if type(value) is list and value else value
    chat = type(first) is dict and "content" not in first
    (_check_documents if chat else _check_scored)(name, value)


def _check_format(name: str, value: Any) -> None:
    """Of `structured_outputs` and `response_format`: the lists in these."""
    for inner, kind in _FORMAT_LISTS.items():
        found = value.get(inner) if type(value) is dict else None
        if type(found) is list and not kind(found):
            raise refusal(f"{name}.{inner}", "a list of texts, or of structures", found)


_FORMAT_LISTS = {
    "choice": texts,
    "triggers": texts,
    "structures": list_of(with_fields({"begin": text, "end": text, "schema": maybe(mapped)})),
}
_OPTIONS: Mapping[str, Check] = {
    **dict.fromkeys(("allowed_token_ids", "logprob_token_ids", "stop_token_ids"), _check_integers),
    **dict.fromkeys(("structured_outputs", "response_format"), _check_format),
    "bad_words": _check_texts,
}
_PAIRS: Mapping[str, Check] = dict.fromkeys(
    ("queries", "documents", "items", "text_1", "text_2", "data_1", "data_2"), _check_scored
)
_SHAPES: Mapping[InputKind, Mapping[str, Check]] = {
    InputKind.MESSAGES: {**_OPTIONS, "messages": check_messages, "documents": _check_documents},
    InputKind.CONVERSATIONS: {**_OPTIONS, "messages": check_conversations},
    InputKind.BLOCKS: {"messages": check_block_messages, "system": check_blocks},
    InputKind.RESPONSE: {
        "input": check_items,
        "include": _check_texts,
        "previous_input_messages": each_is(mapped, "an object"),
        "stop_token_ids": _check_integers,
        "structured_outputs": _check_format,
        "tools": each_is(with_fields({"type": text}), "an object with a `type`"),
    },
    InputKind.PROMPT: {**_OPTIONS, "prompt": _check_prompts},
    InputKind.INPUT: {"input": _check_input, "messages": check_chats},
    InputKind.DOCUMENTS: dict.fromkeys(("query", "documents"), _check_scored),
    InputKind.PAIRS: _PAIRS,
    InputKind.ITEMS: {
        **dict.fromkeys(("query", "items"), _check_prompts),
        "label_token_ids": _check_integers,
    },
    InputKind.TEXTS: {
        **dict.fromkeys(("texts", "images", "embedding_types"), _check_texts),
        "inputs": each_is(
            with_fields({"content": list_of(typed(_COHERE_PARTS))}), "an object with `content`"
        ),
    },
    InputKind.TEXT_TO_TOKENIZE: {"messages": check_messages},
    InputKind.TOKENS: {"tokens": _check_token_ids},
    InputKind.QUESTIONS: {
        **dict.fromkeys(("images", "audio", "videos"), _check_texts),
        "questions": each_is(with_fields({"type": text}), "an object with a `type`"),
    },
    InputKind.AUDIO: {},
    InputKind.ANY: {
        **_OPTIONS,
        **_PAIRS,
        "messages": check_chats,
        "prompt": _check_prompts,
        "input": _check_input,
        "query": _check_scored,
        "documents": _check_any_documents,
    },
}
"""How the lists of each kind of input are checked."""

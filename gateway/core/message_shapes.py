"""The shapes of messages: of chats, of Anthropic's, and of the items of a response's input.

They are vLLM's own types. An element that fits none of them is one that vLLM refuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.core.elements import (
    ABSENT,
    Fields,
    check_fields,
    check_typed,
    either,
    flag,
    integer,
    integers,
    list_of,
    listed,
    mapped,
    maybe,
    number,
    objects,
    one_of,
    optional,
    refusal,
    text,
    typed,
    with_fields,
    wrong_field,
)

_NULL = maybe(one_of())
_MAYBE_TEXTS = dict.fromkeys(("id", "call_id", "name", "namespace"), maybe(text))
_STATUS = one_of("in_progress", "completed", "incomplete")
_DETAIL = one_of("low", "high", "auto", "original")
_FILE_DETAIL = one_of("low", "high", "auto")
BREAKPOINT = with_fields({"mode": one_of("explicit"), "ttl": optional(one_of("30m", "12h"))})
_CALLER = typed({"direct": {}, "program": {"caller_id": text}})
_FILE_NAMES = ("file_data", "file_url", "filename")
INPUT_PARTS: Mapping[str, Fields] = {
    "input_text": {"text": text, "prompt_cache_breakpoint": optional(BREAKPOINT)},
    "input_image": {
        **dict.fromkeys(("image_url", "file_id"), maybe(text)),
        "detail": optional(_DETAIL),
        "prompt_cache_breakpoint": optional(BREAKPOINT),
    },
    "input_file": {
        **dict.fromkeys(_FILE_NAMES, optional(text)),
        "file_id": maybe(text),
        "detail": optional(_FILE_DETAIL),
        "prompt_cache_breakpoint": optional(BREAKPOINT),
    },
}
"""Of a message to the model."""
_RETURNED_PARTS: Mapping[str, Fields] = {
    "input_text": {"text": text, "prompt_cache_breakpoint": maybe(BREAKPOINT)},
    "input_image": {
        **dict.fromkeys(("image_url", "file_id"), maybe(text)),
        "detail": maybe(_DETAIL),
        "prompt_cache_breakpoint": maybe(BREAKPOINT),
    },
    "input_file": {
        **dict.fromkeys((*_FILE_NAMES, "file_id"), maybe(text)),
        "detail": optional(_FILE_DETAIL),
        "prompt_cache_breakpoint": maybe(BREAKPOINT),
    },
}
"""Of what a function has returned."""
_FILE: Fields = {"file_id": text, "filename": text}
_SPAN: Fields = {"start_index": integer, "end_index": integer}
_ANNOTATIONS: Mapping[str, Fields] = {
    "file_citation": {**_FILE, "index": integer},
    "url_citation": {**_SPAN, "title": text, "url": text},
    "container_file_citation": {**_FILE, **_SPAN, "container_id": text},
    "file_path": {"file_id": text, "index": integer},
}
_LOGPROB: Fields = {"token": text, "bytes": integers, "logprob": number}
OUTPUT_PARTS: Mapping[str, Fields] = {
    "output_text": {
        "text": text,
        "annotations": optional(list_of(typed(_ANNOTATIONS))),
        "logprobs": maybe(
            list_of(with_fields({**_LOGPROB, "top_logprobs": list_of(with_fields(_LOGPROB))}))
        ),
    },
    "refusal": {"refusal": text},
}
"""Of an answer of the model."""
_MESSAGE: Fields = {
    "role": one_of("user", "assistant", "system", "developer"),
    "content": either(text, list_of(typed(INPUT_PARTS))),
    "phase": maybe(one_of("commentary", "final_answer")),
}
_ANSWER: Fields = {
    **_MESSAGE,
    "role": one_of("assistant"),
    "content": list_of(typed(OUTPUT_PARTS)),
    "id": optional(text),
    "status": optional(_STATUS),
}
_CALL: Fields = {
    **_MAYBE_TEXTS,
    **dict.fromkeys(("call_id", "name"), text),
    "caller": maybe(_CALLER),
    "async": maybe(flag),
}
ITEMS: Mapping[str, Fields] = {
    "message": _MESSAGE,
    "function_call": {**_CALL, "arguments": text, "status": maybe(_STATUS)},
    "function_call_output": {
        **_MAYBE_TEXTS,
        "output": either(text, list_of(typed(_RETURNED_PARTS))),
        "caller": maybe(_CALLER),
        "status": maybe(_STATUS),
    },
    "custom_tool_call": {**_CALL, "input": text},
    "custom_tool_call_output": {
        "call_id": text,
        "output": either(text, listed),
        "id": optional(text),
        "caller": maybe(_CALLER),
    },
    "reasoning": {
        "summary": list_of(typed({"summary_text": {"text": text}})),
        "content": maybe(list_of(typed({"reasoning_text": {"text": text}}))),
        "id": optional(text),
        "encrypted_content": maybe(text),
        "status": maybe(_STATUS),
    },
    "additional_tools": {"role": one_of("developer"), "tools": listed, "id": maybe(text)},
    "item_reference": {"id": text},
}
"""The items that vLLM accepts, by type. The gateway puts an item in place of a reference."""
BLOCKS: Mapping[str, Fields] = {
    name: {
        **dict.fromkeys(("text", "id", "tool_use_id", "name", "tool_name"), maybe(text)),
        **dict.fromkeys(("thinking", "signature", "data"), maybe(text)),
        **dict.fromkeys(("source", "input"), maybe(mapped)),
        "content": maybe(either(text, list_of(mapped))),
        "is_error": maybe(flag),
        "tool": maybe(
            typed(
                {
                    "tool_reference": {"name": text},
                    "tool_definition": {
                        "definition": with_fields({"name": text, "input_schema": mapped})
                    },
                }
            )
        ),
    }
    for name in (
        *("text", "image", "tool_use", "tool_result", "tool_reference", "thinking"),
        *("redacted_thinking", "tool_addition", "tool_removal"),
    )
}
"""What the content of Anthropic's messages consists of."""
_BLOCK_MESSAGE: Fields = {
    "role": one_of("user", "assistant", "system"),
    "content": either(text, listed),
}
_NAMED: Fields = {"content": either(text, listed), "name": optional(text)}
_OWN_FIELDS: Mapping[str, Fields] = {
    **dict.fromkeys(("user", "system", "developer"), _NAMED),
    "assistant": {
        "content": maybe(either(text, listed)),
        "name": optional(text),
        "tool_calls": optional(listed),
        "refusal": maybe(text),
        "audio": maybe(with_fields({"id": text})),
        "function_call": maybe(with_fields({"name": text, "arguments": text})),
    },
    "tool": {"content": either(text, listed), "tool_call_id": text},
    "function": {"content": lambda value: value is None or text(value), "name": text},
}
"""Of a chat's message with this role. vLLM looks into its lists later, up to the first error."""
_PLAIN_ROLES = frozenset({"user", "system", "developer", "assistant"})
_FUNCTION: Fields = {
    "name": text,
    "description": optional(text),
    "parameters": optional(mapped),
    "strict": maybe(flag),
}
_ANY_PART = either(
    with_fields({"audio_url": maybe(text)}), with_fields({"image_pil": _NULL, "uuid": maybe(text)})
)
"""Two of vLLM's types of parts, without required fields: what fits neither has several errors."""
_ANY_ROLE: Fields = {
    "content": optional(either(text, list_of(either(text, _ANY_PART)))),
    "name": optional(text),
    **dict.fromkeys(("tool_call_id", "reasoning", "task"), maybe(text)),
    "tool_calls": maybe(
        list_of(
            with_fields(
                {
                    "id": text,
                    "type": one_of("function"),
                    "function": with_fields({"name": text, "arguments": text}),
                }
            )
        )
    ),
    "tools": maybe(
        list_of(with_fields({"type": one_of("function"), "function": with_fields(_FUNCTION)}))
    ),
}
"""Of a chat's message with any role."""
_HARMONY: Fields = {
    "author": with_fields(
        {"role": one_of("user", "assistant", "system", "developer", "tool"), "name": maybe(text)}
    ),
    "content": optional(list_of(mapped)),
    **dict.fromkeys(("channel", "recipient", "content_type"), maybe(text)),
}
"""Of a chat's message in Harmony's shape, which has no role of its own."""


def check_messages(name: str, messages: Any) -> None:
    """Raises BadRequest for the first message that can't be part of a chat."""
    if type(messages) is list and all(map(_is_plain, messages)):  # the usual case
        return
    for at, message in objects(name, messages):
        role = message.get("role")
        if role is None and "author" in message:
            check_fields(at, message, _HARMONY)
            continue
        if type(role) is not str:
            raise refusal(f"{at}.role", "a text", message.get("role", ABSENT))
        own = _OWN_FIELDS.get(role)
        if own is None or wrong_field(message, own) is not None:
            check_fields(at, message, _ANY_ROLE)


def _is_plain(message: Any) -> bool:
    """A text with a role that needs nothing else."""
    if type(message) is not dict or len(message) != 2 or type(message.get("content")) is not str:
        return False
    role = message.get("role")
    return type(role) is str and role in _PLAIN_ROLES


def check_conversations(name: str, conversations: Any) -> None:
    """Raises BadRequest for the first conversation that is empty, or has a wrong message."""
    if type(conversations) is not list:
        raise refusal(name, "a list of conversations", conversations)
    for index, each in enumerate(conversations):
        if type(each) is not list or not each:
            raise refusal(f"{name}[{index}]", "a list of at least one message", each)
        check_messages(f"{name}[{index}]", each)


def check_chats(name: str, value: Any) -> None:
    """Raises BadRequest for anything but one conversation, or several."""
    several = type(value) is list and value and type(value[0]) is list
    (check_conversations if several else check_messages)(name, value)


def check_items(name: str, items: Any) -> None:
    """Raises BadRequest for the first item that can't be part of a response's input."""
    for at, item in objects(name, items):
        kind = item.get("type")
        if kind is None and text(item.get("id")):  # vLLM's types allow any other fields
            continue
        if kind == "message" and wrong_field(item, _ANSWER) is None:
            continue
        if "type" in item:
            check_typed(at, item, ITEMS)
        else:
            check_fields(at, item, _MESSAGE)


def check_block_messages(name: str, messages: Any) -> None:
    """Raises BadRequest for the first message that Anthropic's API does not have."""
    for at, message in objects(name, messages):
        check_fields(at, message, _BLOCK_MESSAGE)
        if type(message["content"]) is list:
            check_blocks(f"{at}.content", message["content"])


def check_blocks(name: str, blocks: Any) -> None:
    """Raises BadRequest for the first block of content that Anthropic's API does not have."""
    for at, block in objects(name, blocks):
        check_typed(at, block, BLOCKS)

"""Which fields of a request need the operator's permission, and how large the others may be.

Each field here can cost a server far more than its size: it runs code, reads from the network, or
takes memory and time that other requests need. All other fields are vLLM's to check.

One pass over the names of a body's fields finds what has to be looked at; usually that is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Protocol

from shared.api.errors import BadRequest

MEDIA_URLS = "media_urls"
"""Stands for all URLs of images, audio, video and files that are not `data:`."""

_TEMPLATE = "it changes the chat template, which runs as code on the worker"
_TRANSFER = "it makes the worker read another server's cache"
_TENSORS = "it is unpickled on the worker"
_CLIENT = "it is a setting of the client, and a key must not be stored with a request"
NEEDS_PERMISSION: Mapping[str, str] = {
    "prompt_embeds": _TENSORS,
    "image_embeds": _TENSORS,
    "audio_embeds": _TENSORS,
    "video_embeds": _TENSORS,
    "chat_template": _TEMPLATE,
    "chat_template_kwargs": _TEMPLATE,
    "media_io_kwargs": "it can make a small file very large on the worker",
    "mm_processor_kwargs": "it can make a small file very large on the worker",
    "kv_transfer_params": _TRANSFER,
    "ec_transfer_params": _TRANSFER,
    "kv_hints": _TRANSFER,
    "vllm_xargs": "it is for extensions of the engine",
    "priority": "it would put a request before those of others; `service_tier` selects the lane",
    "cache_salt": "it decides who shares cached prompts",
    "request_id": "the job's id is the request's id in the engine",
    "data_parallel_rank": "it selects a part of the engine",
    "api_base": _CLIENT,
    "base_url": _CLIENT,
    "api_key": _CLIENT,
    "extra_headers": _CLIENT,
    MEDIA_URLS: "the worker would read it from the network; send `data:` URLs",
}
"""Name -> why it is refused unless it is allowed."""
EVERYTHING = "*"
"""Allows all of these."""

_EMBEDS = frozenset({"image_embeds", "audio_embeds", "video_embeds"})
_URLS = frozenset({"image_url", "audio_url", "video_url", "file_url"})
_MEDIA = _EMBEDS | _URLS | {"source"}
"""Names in a part of a message or document that may hold media."""
_INPUTS = frozenset(
    {"messages", "input", "documents", "query", "queries", "items", "inputs", "images"}
    | {"data_1", "data_2", "text_1", "text_2"}
)
"""Fields whose values may have such parts."""


class Caps(Protocol):
    """How large fields may be; the settings have these."""

    @property
    def max_choices(self) -> int:
        """Of `n`."""

    @property
    def max_logprobs(self) -> int:
        """Alternatives for each token."""

    @property
    def max_stop_strings(self) -> int:
        """Also of bad words."""

    @property
    def max_stop_chars(self) -> int:
        """Of one of them."""

    @property
    def max_token_list(self) -> int:
        """Tokens in `stop_token_ids` or `logit_bias`."""

    @property
    def max_tools(self) -> int:
        """In one request."""

    @property
    def max_schema_values(self) -> int:
        """Values in one field that holds schemas."""

    @property
    def max_schema_chars(self) -> int:
        """Characters in one field that holds schemas."""

    @property
    def max_schema_depth(self) -> int:
        """Levels of objects and lists in one field that holds schemas."""


def check_fields(fields: Mapping[str, Any], caps: Caps) -> tuple[str, ...]:
    """The fields of a body that need permission. Raises BadRequest for one that is too large."""
    restricted: list[str] = []
    for name in _WATCHED.intersection(fields):
        value = fields[name]
        if value is None:
            continue
        if name in _INPUTS:
            if type(value) is list or type(value) is dict:
                restricted += _restricted_parts(value)
        elif name in _CHECKS:
            _CHECKS[name](name, value, caps)
        else:
            restricted.append(name)
    return tuple(restricted)


def check_permission(restricted: Iterable[str], allowed: Collection[str]) -> None:
    """Raises BadRequest if a field that needs permission does not have it."""
    for name in restricted:
        if name not in allowed and EVERYTHING not in allowed:
            what = "A URL" if name == MEDIA_URLS else f"`{name}`"
            raise BadRequest(
                f"{what} is not allowed here: {NEEDS_PERMISSION[name]}. The operator can allow it "
                f"with FLOTILLA_ALLOW_FIELDS={name}, or with allow_fields in flotilla.yaml.",
                None if name == MEDIA_URLS else name,
            )


def _restricted_parts(value: Any) -> list[str]:
    """What needs permission in messages, documents and their parts."""
    found: list[str] = []
    waiting = [value]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            if node and type(node[0]) is int:  # token ids
                continue
            waiting += [each for each in node if type(each) is dict or type(each) is list]
            continue
        for name, each in node.items():
            if name in _MEDIA:
                found += _restricted_media(name, each)
            # The arguments of a tool's call are not the model's input, whatever their names.
            elif (type(each) is list or type(each) is dict) and node.get("type") != "tool_use":
                waiting.append(each)
    return found


def _restricted_media(name: str, value: Any) -> list[str]:
    if name in _EMBEDS:
        return [] if value is None else [name]
    url = value
    if isinstance(value, dict):
        if name == "source" and value.get("type") != "url":
            return []
        url = value.get("url")
    elif name == "source":
        return []
    return [MEDIA_URLS] if isinstance(url, str) and url[:5].lower() != "data:" else []


def _check_number(name: str, value: Any, limit: int) -> None:
    if isinstance(value, int) and value > limit:
        raise BadRequest(f"`{name}` may be at most {limit}, not {value}.", name)


def _check_choices(name: str, value: Any, caps: Caps) -> None:
    _check_number(name, value, caps.max_choices)


def _check_logprobs(name: str, value: Any, caps: Caps) -> None:
    _check_number(name, value, caps.max_logprobs)


def _check_strings(name: str, value: Any, caps: Caps) -> None:
    strings = value if isinstance(value, list) else [value]
    if len(strings) > caps.max_stop_strings:
        raise BadRequest(
            f"`{name}` may have at most {caps.max_stop_strings} strings, not {len(strings)}.", name
        )
    longest = max((len(each) for each in strings if isinstance(each, str)), default=0)
    if longest > caps.max_stop_chars:
        raise BadRequest(
            f"A string in `{name}` may have at most {caps.max_stop_chars} characters, "
            f"not {longest}.",
            name,
        )


def _check_tokens(name: str, value: Any, caps: Caps) -> None:
    if isinstance(value, list | dict) and len(value) > caps.max_token_list:
        raise BadRequest(
            f"`{name}` may have at most {caps.max_token_list} tokens, not {len(value)}.", name
        )


def _check_tools(name: str, value: Any, caps: Caps) -> None:
    if isinstance(value, list) and len(value) > caps.max_tools:
        raise BadRequest(f"A request may have at most {caps.max_tools} tools.", name)
    _check_schema(name, value, caps)


def _check_object(name: str, value: Any, caps: Caps) -> None:
    if not isinstance(value, dict):
        raise BadRequest(f"`{name}` must be an object.", name)
    _check_schema(name, value, caps)


def _check_schema(name: str, value: Any, caps: Caps) -> None:
    """Check what a grammar is made of, level by level, up to the first limit."""
    values = chars = 0
    level = [value]
    for _ in range(caps.max_schema_depth + 1):
        inner: list[Any] = []
        for node in level:
            if isinstance(node, str):
                chars += len(node)
            elif isinstance(node, dict):
                values += len(node)
                chars += sum(map(len, node))
                inner += node.values()
            elif isinstance(node, list):
                values += len(node)
                inner += node
        if values > caps.max_schema_values:
            raise BadRequest(f"`{name}` has more than {caps.max_schema_values} values.", name)
        if chars > caps.max_schema_chars:
            raise BadRequest(f"`{name}` has more than {caps.max_schema_chars} characters.", name)
        if not inner:
            return
        level = inner
    raise BadRequest(
        f"`{name}` is nested too deeply: at most {caps.max_schema_depth} levels are allowed.", name
    )


_CHECKS: dict[str, Callable[[str, Any, Caps], None]] = {
    "n": _check_choices,
    "best_of": _check_choices,
    "logprobs": _check_logprobs,
    "top_logprobs": _check_logprobs,
    "prompt_logprobs": _check_logprobs,
    "stop": _check_strings,
    "stop_sequences": _check_strings,
    "bad_words": _check_strings,
    "stop_token_ids": _check_tokens,
    "logit_bias": _check_tokens,
    "tools": _check_tools,
    "functions": _check_tools,
    "tool_choice": _check_schema,
    "response_format": _check_object,
    "structured_outputs": _check_object,
    "text": _check_schema,
    "output_format": _check_schema,
    "output_config": _check_schema,
}
_WATCHED = _INPUTS.union(_CHECKS, NEEDS_PERMISSION)

"""Which fields of a request need the operator's permission, and how large the others may be.

Each field here can cost a server far more than its size: it runs code, reads from the network, or
takes memory and time that other requests need. All other fields are vLLM's to check.

One pass over the names of a body's fields finds what has to be looked at; usually that is nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from shared.job.errors import BadRequest

MEDIA_URLS = "media_urls"
"""Stands for all URLs of images, audio, video and files that are not `data:`."""
MEDIA_UUIDS = "media_uuids"
"""Stands for `uuid` in parts with images, audio or video."""
TOKENIZER_ARGUMENTS = "tokenizer_arguments"
"""Stands for members of `chat_template_kwargs` that no template gets."""

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
    TOKENIZER_ARGUMENTS: "it can make a short prompt very large on the worker",
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
    "data": "it is for a plugin of the engine, which may read files and URLs",
    "api_base": _CLIENT,
    "base_url": _CLIENT,
    "api_key": _CLIENT,
    "extra_headers": _CLIENT,
    MEDIA_URLS: "the worker would read it from the network; send `data:` URLs",
    MEDIA_UUIDS: "it is the key of a cached picture or sound, which others' requests would get",
}
"""Name -> why it is refused unless it is allowed."""
_NAMES_OF_ALL = {
    MEDIA_URLS: "A URL",
    MEDIA_UUIDS: "`uuid` in a part",
    TOKENIZER_ARGUMENTS: "An argument of the tokenizer in `chat_template_kwargs`",
}
EVERYTHING = "*"
"""Allows all of these."""

_TEMPLATE_KWARGS = "chat_template_kwargs"
_NO_TEMPLATE_KWARGS = frozenset(
    {"tokenize", "padding", "truncation", "max_length", "return_tensors", "return_dict"}
    | {"return_assistant_tokens_mask", "tokenizer_kwargs", "conversation", "tokenizer"}
    | {"model_config"}
)
"""What vLLM and transformers take in the same call as the variables of the template."""
_TENSORS_IN = frozenset({"image_embeds", "audio_embeds", "video_embeds", "prompt_embeds"})
_URLS_IN = frozenset({"image_url", "audio_url", "video_url", "file_url"})
_WITH_UUID = _TENSORS_IN | _URLS_IN | {"input_audio", "image_pil"}
_MEDIA = _TENSORS_IN | _URLS_IN | {"source", "type", "uuid"}
"""Names in a part of a message or document that may hold media, or say that it does."""
_URL_LISTS = frozenset({"images", "audio", "videos"})
"""Fields that are lists of URLs."""
_INPUTS = frozenset(
    {"messages", "input", "documents", "query", "queries", "items", "inputs", "system"}
    | {"data_1", "data_2", "text_1", "text_2", "previous_input_messages"}
    | _URL_LISTS
)
"""Fields whose values may have such parts."""
MAX_LOGPROBS = 20
"""Alternatives for each token; vLLM's own limit is --max-logprobs."""
MAX_LOGPROBS_AT_ONCE = 6_500
"""In an answer that is not streamed: vLLM makes so many in about 0.1 s, in which its other answers
wait."""
_MAX_STRINGS, _MAX_STRING_CHARS = 64, 1024
"""Stop strings, or bad words, of one request, and characters of one of them."""
_MAX_TOKENS = 1024
"""Tokens in `stop_token_ids` or `logit_bias`."""
_MAX_TOOLS = 128
_MAX_SCHEMA_VALUES, _MAX_SCHEMA_CHARS, _MAX_SCHEMA_DEPTH = 20_000, 262_144, 64
"""Values, characters, and levels of objects and lists, in one field that holds schemas."""


def check_fields(fields: Mapping[str, Any], max_choices: int) -> tuple[str, ...]:
    """The fields of a body that need permission. Raises BadRequest for one that is too large.

    `max_choices`: the highest `n`.
    """
    restricted: list[str] = []
    for name in _WATCHED.intersection(fields):
        value = fields[name]
        if value is None:
            continue
        if name in _INPUTS:
            if type(value) is list or type(value) is dict:
                restricted += restricted_parts(value, urls=name in _URL_LISTS)
        elif name == _TEMPLATE_KWARGS:
            restricted += _restricted_kwargs(value)
        elif name in _CHOICES:
            _check_number(name, value, max_choices)
        elif name in _CHECKS:
            _CHECKS[name](name, value)
        else:
            restricted.append(name)
    return tuple(restricted)


def check_permission(restricted: Iterable[str], allowed: Collection[str]) -> None:
    """Raises BadRequest if a field that needs permission does not have it."""
    for name in restricted:
        if name not in allowed and EVERYTHING not in allowed:
            what = _NAMES_OF_ALL.get(name, f"`{name}`")
            raise BadRequest(
                f"{what} is not allowed here: {NEEDS_PERMISSION[name]}. The operator can allow it "
                f"with FLOTILLA_ALLOW_FIELDS={name}, or with allow_fields in flotilla.yaml.",
                None if name in _NAMES_OF_ALL else name,
            )


def restricted_parts(value: list[Any] | dict[str, Any], *, urls: bool = False) -> list[str]:
    """What needs permission in messages, items, documents and their parts, wherever it stands.

    `urls`: texts in the list are URLs.
    """
    found: list[str] = []
    if urls and any(type(each) is str and _is_fetched(each) for each in value):
        found.append(MEDIA_URLS)
    waiting: list[Any] = [value]
    while waiting:
        node = waiting.pop()
        if type(node) is list:
            if node and type(node[0]) is int:  # token ids
                continue
            waiting += [each for each in node if type(each) is dict or type(each) is list]
            continue
        # The arguments of a tool's call are not the model's input, whatever their names.
        skipped = "input" if node.get("type") == "tool_use" else None
        for name, each in node.items():
            if name in _MEDIA:
                found += _restricted_media(name, each, node)
            if (type(each) is list or type(each) is dict) and name != skipped:
                waiting.append(each)
    return found


def _restricted_kwargs(kwargs: Any) -> list[str]:
    if not isinstance(kwargs, dict):  # vLLM answers with the error
        return []
    found = [TOKENIZER_ARGUMENTS] if _NO_TEMPLATE_KWARGS & kwargs.keys() else []
    return [*found, "chat_template"] if "chat_template" in kwargs else found


def _restricted_media(name: str, value: Any, part: Mapping[str, Any]) -> list[str]:
    if name in _TENSORS_IN:
        return [] if value is None else [name]
    if name == "type":
        return ["prompt_embeds"] if value == "prompt_embeds" else []
    if name == "uuid":
        return [MEDIA_UUIDS] if value is not None and not _WITH_UUID.isdisjoint(part) else []
    url = value
    if isinstance(value, dict):
        if name == "source" and value.get("type") != "url":
            return []
        url = value.get("url")
    elif name == "source":
        return []
    return [MEDIA_URLS] if isinstance(url, str) and _is_fetched(url) else []


def _is_fetched(url: str) -> bool:
    return url[:5].lower() != "data:"


def _check_number(name: str, value: Any, limit: int) -> None:
    if isinstance(value, int) and value > limit:
        raise BadRequest(f"`{name}` may be at most {limit}, not {value}.", name)


def _check_logprobs(name: str, value: Any) -> None:
    _check_number(name, value, MAX_LOGPROBS)


def _check_strings(name: str, value: Any) -> None:
    strings = value if isinstance(value, list) else [value]
    if len(strings) > _MAX_STRINGS:
        raise BadRequest(
            f"`{name}` may have at most {_MAX_STRINGS} strings, not {len(strings)}.", name
        )
    longest = max((len(each) for each in strings if isinstance(each, str)), default=0)
    if longest > _MAX_STRING_CHARS:
        raise BadRequest(
            f"A string in `{name}` may have at most {_MAX_STRING_CHARS} characters, not {longest}.",
            name,
        )


def _check_tokens(name: str, value: Any) -> None:
    if isinstance(value, list | dict) and len(value) > _MAX_TOKENS:
        raise BadRequest(f"`{name}` may have at most {_MAX_TOKENS} tokens, not {len(value)}.", name)


def _check_tools(name: str, value: Any) -> None:
    if isinstance(value, list) and len(value) > _MAX_TOOLS:
        raise BadRequest(f"A request may have at most {_MAX_TOOLS} tools.", name)
    _check_schema(name, value)


def _check_object(name: str, value: Any) -> None:
    if not isinstance(value, dict):
        raise BadRequest(f"`{name}` must be an object.", name)
    _check_schema(name, value)


def _check_schema(name: str, value: Any) -> None:
    """Check what a grammar is made of, level by level, up to the first limit."""
    values = chars = 0
    level = [value]
    for _ in range(_MAX_SCHEMA_DEPTH + 1):
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
        if values > _MAX_SCHEMA_VALUES:
            raise BadRequest(f"`{name}` has more than {_MAX_SCHEMA_VALUES} values.", name)
        if chars > _MAX_SCHEMA_CHARS:
            raise BadRequest(f"`{name}` has more than {_MAX_SCHEMA_CHARS} characters.", name)
        if not inner:
            return
        level = inner
    raise BadRequest(
        f"`{name}` is nested too deeply: at most {_MAX_SCHEMA_DEPTH} levels are allowed.", name
    )


_CHECKS: dict[str, Callable[[str, Any], None]] = {
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
_CHOICES = {"n", "best_of"}
_WATCHED = (
    _INPUTS.union(_CHECKS, _CHOICES, NEEDS_PERMISSION, {_TEMPLATE_KWARGS}) - _NAMES_OF_ALL.keys()
)

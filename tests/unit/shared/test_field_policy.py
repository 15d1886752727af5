"""The gateway's checks of single fields."""

from __future__ import annotations

from typing import Any

import pytest

from shared.api.field_policy import (
    EVERYTHING,
    MEDIA_URLS,
    MEDIA_UUIDS,
    NEEDS_PERMISSION,
    TOKENIZER_ARGUMENTS,
    check_fields,
    check_permission,
)
from shared.job.errors import BadRequest
from tests.harness.settings import Settings

MAX_CHOICES = 64
CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 4}


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"properties": schema}
    return schema


def part(**content: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [{"type": "text", "text": "x"}, content]}]}


@pytest.mark.parametrize(
    "name", sorted(set(NEEDS_PERMISSION) - {MEDIA_URLS, MEDIA_UUIDS, TOKENIZER_ARGUMENTS})
)
def test_a_field_that_needs_permission(name: str) -> None:
    restricted = check_fields({**CHAT, name: {"any": "value"}}, MAX_CHOICES)
    assert restricted == (name,)
    with pytest.raises(BadRequest, match=name) as refused:
        check_permission(restricted, ())
    assert refused.value.param == name
    assert NEEDS_PERMISSION[name] in str(refused.value)
    check_permission(restricted, ("another", name))
    check_permission(restricted, (EVERYTHING,))
    assert check_fields({**CHAT, name: None}, MAX_CHOICES) == ()


@pytest.mark.parametrize(
    "fields",
    [
        part(type="image_url", image_url={"url": "http://169.254.169.254/latest/meta-data"}),
        part(type="image_url", image_url="file:///etc/passwd"),
        part(type="video_url", video_url={"url": "gopher://x"}),
        part(image_url={"url": "http://allowed\\@evil"}),
        part(type="image", source={"type": "url", "url": "https://example.com/a.png"}),
        part(type="input_image", image_url="https://example.com/a.png"),
        part(type="tool_result", content=[{"type": "image_url", "image_url": {"url": "ftp://x"}}]),
        {"input": [{"role": "user", "content": [{"type": "input_file", "file_url": "http://x"}]}]},
        {"messages": [part(image_url={"url": "http://x"})["messages"]]},
        {
            "documents": [
                "a",
                {"content": [{"type": "image_url", "image_url": {"url": "http://x"}}]},
            ]
        },
        {"query": {"content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}},
        {"images": [{"image_url": "http://x"}]},
        {"images": ["data:image/png;base64,AAAA", "http://x"]},
        {"audio": ["http://x"]},
        {"videos": ["file:///etc/passwd"]},
        {"system": [{"type": "image", "source": {"type": "url", "url": "http://x"}}]},
        {"messages": [{**part(image_url={"url": "http://x"})["messages"][0], "type": "tool_use"}]},
        part(type="tool_use", input={}, content=[{"image_url": "http://x"}]),
        part(type="text", text="x", image_url="http://x"),
    ],
)
def test_a_url_that_the_worker_would_open_needs_permission(fields: dict[str, Any]) -> None:
    restricted = check_fields(fields, MAX_CHOICES)
    assert set(restricted) == {MEDIA_URLS}
    with pytest.raises(BadRequest, match="data:"):
        check_permission(restricted, ("chat_template",))
    check_permission(restricted, (MEDIA_URLS,))


@pytest.mark.parametrize(
    "fields",
    [
        CHAT,
        part(type="image_url", image_url={"url": "data:image/png;base64,AAAA"}),
        part(type="image", source={"type": "base64", "data": "AAAA", "media_type": "image/png"}),
        part(type="tool_use", name="open", input={"image_url": "https://example.com"}),
        {"documents": [{"title": "t", "text": "x", "url": "https://example.com"}]},
        {"documents": [{"text": "x", "uuid": "5"}]},
        {"input": [1, 2, 3]},
        {"prompt": "see https://example.com", "source": "https://example.com"},
        {"tools": [{"type": "function", "function": {"name": "f", "parameters": nested(20)}}]},
        {"logprobs": True, "top_logprobs": 20, "n": 8, "stop": ["a", "b"], "logit_bias": {"5": 1}},
        {"n": "many", "stop": 5, "logit_bias": "x", "tools": 7, "logprobs": None},
    ],
)
def test_what_passes_or_is_left_to_vllm(fields: dict[str, Any]) -> None:
    assert check_fields(fields, MAX_CHOICES) == ()


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        (part(type="prompt_embeds", data="gASV"), "prompt_embeds"),
        (part(uuid="mine", prompt_embeds="gASV"), "prompt_embeds"),
        ({"input": [{"role": "user", "content": [{"type": "prompt_embeds"}]}]}, "prompt_embeds"),
        (part(type="image_url", image_url=None, uuid="theirs"), MEDIA_UUIDS),
        (
            part(type="input_audio", input_audio={"data": "AAAA", "format": "wav"}, uuid="x"),
            MEDIA_UUIDS,
        ),
        ({"data": {"path": "/etc/passwd"}}, "data"),
    ],
)
def test_tensors_and_keys_of_caches_need_permission(fields: dict[str, Any], name: str) -> None:
    restricted = check_fields(fields, MAX_CHOICES)
    assert name in restricted
    with pytest.raises(BadRequest, match=r"FLOTILLA_ALLOW_FIELDS"):
        check_permission(restricted, ())
    check_permission(restricted, (name, "prompt_embeds", MEDIA_UUIDS))


def test_embeddings_in_a_part_need_permission() -> None:
    assert check_fields(part(type="image_embeds", image_embeds="gASV"), MAX_CHOICES) == (
        "image_embeds",
    )


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("n", {"n": 65}),
        ("best_of", {"best_of": 10**9}),
        ("logprobs", {"logprobs": 10**6}),
        ("top_logprobs", {"top_logprobs": 21}),
        ("prompt_logprobs", {"prompt_logprobs": 21}),
        ("stop", {"stop": ["x"] * 1000}),
        ("stop", {"stop": "x" * 2000}),
        ("bad_words", {"bad_words": ["x" * 2000]}),
        ("stop_token_ids", {"stop_token_ids": list(range(2000))}),
        ("logit_bias", {"logit_bias": {str(token): 1 for token in range(2000)}}),
        ("tools", {"tools": [{"type": "function"}] * 129}),
        ("tools", {"tools": [{"function": {"name": "x" * 300_000}}]}),
        ("tools", {"tools": [{"function": {"parameters": nested(100)}}]}),
        ("tool_choice", {"tool_choice": nested(100)}),
        ("response_format", {"response_format": "json"}),
        ("response_format", {"response_format": {"json_schema": {"schema": nested(100)}}}),
        ("response_format", {"response_format": {"json_schema": {"enum": ["x"] * 30_000}}}),
        ("structured_outputs", {"structured_outputs": "x"}),
        ("structured_outputs", {"structured_outputs": {"choice": ["x"] * 100_000}}),
        ("structured_outputs", {"structured_outputs": {"regex": "a" * 1_000_000}}),
        ("structured_outputs", {"structured_outputs": {"json": {"y" * 300_000: 1}}}),
        ("text", {"text": {"format": {"schema": nested(100)}}}),
    ],
)
def test_a_field_that_is_too_large(param: str, fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as refused:
        check_fields(CHAT | fields, MAX_CHOICES)
    assert refused.value.param == param
    assert len(str(refused.value)) < 200


def test_the_settings_name_what_is_allowed() -> None:
    assert Settings(allow_fields="priority, cache_salt").allow_fields == ("priority", "cache_salt")  # type: ignore[arg-type]
    assert check_fields({"n": 100}, 100) == ()

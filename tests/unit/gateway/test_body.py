"""A request's body: limits while it is read, and strict parsing."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Iterable
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from gateway.http import body as body_module
from gateway.http.body import (
    BodyLimit,
    Limits,
    check_size,
    parse_json,
    parse_object,
    raw_member,
    read_body,
)
from shared.api.endpoint import BodyKind
from shared.job.errors import BadRequest, BodyTimeout, BodyTooLarge, UnsupportedMediaType

LIMIT = 1000


def request(parts: Iterable[bytes], *, end: str = "", **headers: str) -> Request:
    """A request whose body arrives in parts; `end`: what happens after them instead of its end."""
    waiting = list(parts)

    async def receive() -> Message:
        if waiting:
            more = len(waiting) > 1 or bool(end)
            return {"type": "http.request", "body": waiting.pop(0), "more_body": more}
        if end == "leaves":
            return {"type": "http.disconnect"}
        assert end == "hangs", "read on after the end"
        await asyncio.Event().wait()
        raise AssertionError

    headers = {"content_type": "application/json", **headers}
    sent = [(k.replace("_", "-").encode(), v.encode()) for k, v in headers.items()]
    scope = {"type": "http", "method": "POST", "path": "/", "headers": sent}
    return Request(scope, receive)


async def read(given: Request, timeout_s: float = 30.0) -> bytes:
    limit = BodyLimit(LIMIT, "FLOTILLA_X", timeout_s, held_bytes=LIMIT)
    return await read_body(given.scope, given.receive, BodyKind.JSON, limit)


async def test_a_body_whose_content_length_is_too_large_is_not_read() -> None:
    given = request([], content_length=str(LIMIT + 1))  # reading it would fail the test
    with pytest.raises(BodyTooLarge, match="1000 bytes"):
        await read(given)


@pytest.mark.parametrize("headers", [{}, {"content_length": "5"}, {"content_length": "-1"}])
@pytest.mark.parametrize("parts", [[b"x" * (LIMIT + 1)], [b"x" * 100] * 11])
async def test_a_body_larger_than_its_content_length_is_refused_at_the_limit(
    parts: list[bytes], headers: dict[str, str]
) -> None:
    with pytest.raises(BodyTooLarge):
        await read(request(parts, end="hangs", **headers))


async def test_a_slow_body_times_out() -> None:
    with pytest.raises(BodyTimeout):
        await read(request([b"{"], end="hangs"), timeout_s=0.01)


@pytest.mark.parametrize("encoding", ["br", "gzip, gzip", "x" * 9999])
async def test_other_codings_are_refused_before_the_body_is_read(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="Content-Encoding") as caught:
        await read(request([], content_encoding=encoding))
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b'{"model":', id="truncated"),
        pytest.param(b"", id="empty"),
        pytest.param(b" \n", id="blank"),
        pytest.param(b"null", id="null"),
        pytest.param(b"[]", id="array"),
        pytest.param(b'"x"', id="string"),
        pytest.param(b"42", id="number"),
        pytest.param(b"true", id="true"),
        pytest.param(b"[" * 100_000, id="deep arrays"),
        pytest.param(b"[" * 100_000 + b"]" * 100_000, id="deep closed arrays"),
        pytest.param(b'{"a":' * 100_000 + b"1" + b"}" * 100_000, id="deep objects"),
        pytest.param(b'{"a": NaN}', id="NaN"),
        pytest.param(b'{"a": Infinity}', id="Infinity"),
        pytest.param(b'{"a": -Infinity}', id="-Infinity"),
        pytest.param(b'{"a": 1e999}', id="1e999"),
        pytest.param(b'{"a": -1e999}', id="-1e999"),
        pytest.param(b'{"a": [{"b": 1e400}]}', id="1e400 inside"),
        pytest.param(b'{"a": 1, "a": 2}', id="key twice"),
        pytest.param(b'{"a": {"b": 1, "\\u0062": 1}}', id="key twice, spelt otherwise"),
        pytest.param(b'{"model": "m"} {}', id="more behind it"),
        pytest.param(b'{"model": "m"}\x00', id="NUL behind it"),
        pytest.param(b"{'a': 1}", id="single quotes"),
        pytest.param(b'{"a": 1,}', id="trailing comma"),
        pytest.param(b'{"a": 01}', id="leading zero"),
        pytest.param(b'{"a": "\n"}', id="raw control character"),
        pytest.param(b'{"a": "\x00"}', id="raw NUL"),
        pytest.param('{"a": 1}'.encode("utf-16"), id="UTF-16"),
        pytest.param('{"a": 1}'.encode("utf-16-le"), id="UTF-16 without a BOM"),
        pytest.param('{"a": 1}'.encode("utf-32"), id="UTF-32"),
        pytest.param(b'\xef\xbb\xbf{"a": 1}', id="BOM"),
        pytest.param(b'{"a": "\xff"}', id="not UTF-8"),
        pytest.param(b'{"a": "\xc0\x80"}', id="overlong UTF-8"),
        pytest.param(b'{"a": "\xed\xa0\x80"}', id="surrogate in UTF-8"),
        pytest.param(b'{"a": ' + b"9" * 5000 + b"}", id="a number of 5,000 digits"),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused(body: bytes) -> None:
    with pytest.raises(BadRequest) as caught:
        parse_object(body)
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b"{}", {}),
        (b' {"a": null} \r\n', {"a": None}),
        (b'{"a": "\\u0000\\u202e\\n"}', {"a": "\x00\u202e\n"}),
        ('{"ü": "😀"}'.encode(), {"ü": "😀"}),
        (b'{"a": 9223372036854775808}', {"a": 2**63}),
        (b'{"a": -' + b"9" * 4000 + b"}", {"a": -(10**4000 - 1)}),
        (b'{"a": 1e308, "b": 1e-999, "c": -0.0}', {"a": 1e308, "b": 0.0, "c": -0.0}),
        (b'{"a": {"b": 1}, "b": 1}', {"a": {"b": 1}, "b": 1}),
        (b'{"a": ' + b"[" * 100 + b"]" * 100 + b"}", None),
    ],
)
def test_a_valid_body_is_parsed(body: bytes, value: object) -> None:
    parsed = parse_object(body)
    assert value is None or parsed == value


@pytest.mark.parametrize("media_type", ["", "text/plain", "application/x-www-form-urlencoded"])
async def test_a_content_type_that_web_pages_can_send_without_cors_is_refused(
    media_type: str,
) -> None:
    with pytest.raises(UnsupportedMediaType, match="`Content-Type: application/json`") as refused:
        await read(request([b"{}"], content_type=media_type))
    assert (repr(media_type) if media_type else "none") in str(refused.value)
    assert refused.value.status == 415


@pytest.mark.parametrize("text", [rb'{"a": "\ud800"}', rb'{"\udfff": 1}', rb'{"a": ["\uD83D x"]}'])
def test_a_lone_surrogate_is_refused(text: bytes) -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        parse_object(text)


# --- large bodies ---

LIMITS = Limits(values=1000, objects=100)
KEYS = ",".join(f'"k{n}": 1' for n in range(101))


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" + "1," * 1000 + "1]", id="numbers"),
        pytest.param("[" + '"",' * 100 + '""]', id="empty strings"),
        pytest.param("[" + "[]," * 100 + "[]]", id="lists"),
        pytest.param("[" + "{}," * 100 + "{}]", id="objects"),
        pytest.param("{" + KEYS + "}", id="keys"),
        pytest.param("[" * 101 + "]" * 101, id="nested lists"),
        pytest.param('["\\\\",' + "[]," * 100 + '"\\""]', id="behind a backslash in a string"),
        pytest.param('["' + "x" * 600_000 + '",' + "[]," * 100 + '""]', id="behind a long text"),
    ],
)
def test_a_body_with_too_many_values_is_refused(text: str) -> None:
    with pytest.raises(BodyTooLarge, match="1000 values"):
        check_size(b'{"x": ' + text.encode() + b"}", LIMITS)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("[" + "1," * 900 + "1]", id="numbers"),
        pytest.param("[" + '"\\"",' * 90 + "1]", id="strings"),
        pytest.param("[" + "[]," * 90 + "[]]", id="lists"),
        pytest.param(json.dumps("a, b: [c] {d} " * 50_000), id="text"),
        pytest.param(json.dumps('{"a": ["\\", 1]}\n' * 50_000), id="JSON in a text"),
        pytest.param(json.dumps("\\" * 300_001 + "[,:{" * 50_000), id="backslashes"),
    ],
)
def test_structure_characters_in_strings_are_not_counted(text: str) -> None:
    check_size(b'{"x": ' + text.encode() + b"}", LIMITS)


def held(value: Any) -> Limits:
    """The number of commas, containers and strings in a parsed value."""
    if isinstance(value, str):
        return Limits(0, 1)
    if not isinstance(value, dict | list):
        return Limits(0, 0)
    members = [*value, *value.values()] if isinstance(value, dict) else value
    inner = [held(each) for each in members]
    return Limits(
        max(0, len(value) - 1) + 1 + sum(each.values for each in inner),
        1 + sum(each.objects for each in inner),
    )


def test_the_count_of_values_is_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """Random JSON, counted in pieces of random length."""
    chance = random.Random(200)

    def make(depth: int) -> Any:
        kind = chance.randrange(3 if depth < 4 else 1)
        if kind == 1:
            return [make(depth + 1) for _ in range(chance.randrange(5))]
        if kind == 2:
            return {text() + str(n): make(depth + 1) for n in range(chance.randrange(5))}
        return chance.choice([text(), 1, None, 1.5])

    def text() -> str:
        return "".join(chance.choice('\\",:[{}] aü') for _ in range(chance.randrange(8)))

    for _ in range(200):
        monkeypatch.setattr(body_module, "_COUNT_BYTES", chance.randint(1, 40))
        value = {"x": [make(0) for _ in range(5)]}
        raw = json.dumps(value).encode()
        there = held(value)
        check_size(raw, there)
        for less in (
            there._replace(values=there.values - 1),
            there._replace(objects=there.objects - 1),
        ):
            with pytest.raises(BodyTooLarge):
                check_size(raw, less)


async def test_a_large_body_has_the_same_errors_as_a_small_one() -> None:
    padding = b'"p": "' + b"x" * 100_000 + b'"'
    for wrong, words in (
        (b'"a": 1, "a": 2', "duplicate"),
        (b'"a": NaN', "NaN"),
        (b'"a": 01', "valid"),
    ):
        with pytest.raises(BadRequest, match=words):
            await parse_json(b"{" + padding + b"," + wrong + b"}", LIMITS, dict)


@pytest.mark.parametrize(
    "text",
    [
        '{"body":{"a":1}}',
        ' {\n"x" : "body" ,\t"body" : {"body": [1, "}", 2.50]} , "z": [] }\n',
        '{"a\\"body\\"": {"body": 1}, "b\\u006fdy": "ü\\u00fc"}',
        '{"x": {}, "body": -1e5}',
    ],
)
def test_a_member_is_returned_unchanged(text: str) -> None:
    raw = raw_member(text.encode(), "body")
    assert raw in text.encode()
    assert json.loads(raw) == json.loads(text)["body"]

"""The requests of a body, whatever its parts are, as lines of an input."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import Any

import pytest

from gateway.apis.anthropic import batch_requests
from gateway.apis.anthropic.batch_requests import BatchRequests
from gateway.apis.anthropic.request_splitter import RequestSplitter
from gateway.http.body_parts import BodyParts
from shared.batches.line_check import check_line
from shared.job.errors import BadRequest, BodyTooLarge

PIECES = [
    '"',
    "\\",
    "{",
    "}",
    "[",
    "]",
    ",",
    "é",
    "\n",
    "\u2028",
    "x" * 50,
    ":",
    "\x00",
    "\U0001f6a2",
]


def split(body: bytes, cuts: Sequence[int], most_bytes: int = 1 << 20) -> list[Any]:
    splitter = RequestSplitter(most_bytes)
    ends = [*sorted(cuts), len(body)]
    parts = [body[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
    found = [json.loads(each) for part in parts for each in splitter.feed(part)]
    splitter.finish()
    return found


def some_json(chance: random.Random, depth: int = 0) -> Any:
    if depth > 4 or chance.random() < 0.4:
        text = "".join(chance.choices(PIECES, k=chance.randrange(8)))
        return chance.choice([text, text, 1, -2.5e7, True, None])
    some = [some_json(chance, depth + 1) for _ in range(chance.randrange(4))]
    return some if chance.random() < 0.5 else {f'k{n}\\"': each for n, each in enumerate(some)}


@pytest.mark.parametrize("seed", range(40))
def test_parts_may_end_anywhere(seed: int) -> None:
    chance = random.Random(seed)
    requests = [
        {"custom_id": f"q{n}", "params": {"x": some_json(chance)}}
        for n in range(chance.randrange(6))
    ]
    indent = chance.choice([None, 0, 2])
    text = json.dumps({"requests": requests}, indent=indent, ensure_ascii=chance.random() < 0.5)
    body = f" {text}\r\n".encode()
    assert split(body, []) == requests
    assert split(body, range(1, len(body))) == requests
    for _ in range(10):
        assert split(body, chance.sample(range(len(body)), min(5, len(body)))) == requests


@pytest.mark.parametrize(
    "body",
    [
        b'{"requests": [{}',
        b'{"requests": [{}]',
        b'{"requests": [{"a": "}]}',
        b'{"requests": [{},]}',
        b'{"requests": [,{}]}',
        b'{"requests": [{} {}]}',
        b'{"requests": [{}]} x',
        b'{"requests": [{}], "more": 1}',
        b'{"more": 1, "requests": [{}]}',
        b'{"requests": {"a": []}}',
        b"[" * 5000,
        b'{"requests": [{"a": ' + b"[" * 5000,
    ],
)
def test_what_is_no_such_body(body: bytes) -> None:
    for cuts in ([], range(1, len(body))):
        with pytest.raises(BadRequest):
            split(body, cuts)


def test_one_request_is_limited() -> None:
    for text, cuts in (("x" * 200, []), ("x" * 200, range(1, 240)), ("{" * 200, [30])):
        body = b'{"requests": [{"a": "%b"}]}' % text.encode()
        with pytest.raises(BodyTooLarge):
            split(body, cuts, 100)
    assert (
        split(b'{"requests": [%b]}' % b",".join([b'{"a": 1}'] * 100), [], 100) == [{"a": 1}] * 100
    )


async def lines_of(requests: BatchRequests, *pieces: bytes) -> list[bytes]:
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> Any:
        return messages.pop(0)

    body = BodyParts({"headers": []}, receive, 5)
    return b"".join([chunk async for chunk in requests.lines(body)]).splitlines(keepends=True)


def body_of(*requests: Any, **how: Any) -> bytes:
    return json.dumps({"requests": requests}, **how).encode()


async def test_each_request_is_a_line_that_runs() -> None:
    params = {"model": "m", "messages": [{"role": "user", "content": "a\n\u2028b\r"}], "n": [1, {}]}
    body = body_of(*({"params": params, "custom_id": f"q-{n}"} for n in range(5000)), indent=1)
    pieces = [body[at : at + 100_000] for at in range(0, len(body), 100_000)]
    requests = BatchRequests(1 << 20)
    lines = await lines_of(requests, *pieces)
    assert [check_line(each, "/v1/messages", bool) for each in lines] == [
        (f"q-{n}", "m") for n in range(5000)
    ]
    assert json.loads(lines[7])["body"] == params
    assert (requests.total, requests.model) == (5000, "m")


@pytest.mark.parametrize("models", [("a", "b"), (None,), (7,), ("a", None)])
async def test_several_models_or_none_are_not_that_of_the_batch(models: tuple[Any, ...]) -> None:
    body = body_of(
        *(
            {"custom_id": f"q{n}", "params": {} if model is None else {"model": model}}
            for n, model in enumerate(models)
        )
    )
    requests = BatchRequests(1 << 20)
    assert len(await lines_of(requests, body)) == len(models)
    assert requests.model == ""


async def test_the_limits_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    body = body_of(*({"custom_id": f"q{n}", "params": {}} for n in range(11)))
    monkeypatch.setattr(batch_requests, "MOST_REQUESTS", 11)
    assert len(await lines_of(BatchRequests(1000), body)) == 11
    monkeypatch.setattr(batch_requests, "MOST_REQUESTS", 10)
    with pytest.raises(BadRequest, match="10 requests at most"):
        await lines_of(BatchRequests(1000), body)
    monkeypatch.setattr(batch_requests, "MOST_BYTES", 100)
    with pytest.raises(BodyTooLarge):
        await lines_of(BatchRequests(1000), body[:60], body[60:])

"""The lines of a batch's input, however they are cut into chunks; ids that are there twice."""

from __future__ import annotations

import json
import random
from collections.abc import AsyncIterator, Sequence
from typing import cast

import pytest

from gateway.batches import input_check
from gateway.batches.input_check import InputCheck
from gateway.batches.input_lines import InputLine, input_lines, line_at
from gateway.batches.line_result import answered
from shared.batches.batch import Batch, LineError
from shared.storage import Segment, Storage
from shared.store.files import Purpose, StoredFile

MOST = 300


class Chunks:
    """A storage whose only blob is read in chunks of some bytes."""

    def __init__(self, data: bytes, size: int) -> None:
        self._data = data
        self._size = size

    async def read(
        self, segments: Sequence[Segment], start: int = 0, end: int | None = None
    ) -> AsyncIterator[bytes]:
        data = self._data[start:end]
        for at in range(0, len(data), self._size):
            yield data[at : at + self._size]


async def lines_of(data: bytes, size: int, number: int = 1, offset: int = 0) -> list[InputLine]:
    storage = cast("Storage", Chunks(data, size))
    found: list[InputLine] = []
    async for some in input_lines(storage, (), MOST, number, offset):
        found += some
    return found


DATA = (
    b"\xef\xbb\xbfone\r\n\r\n \n" + b"x" * (MOST + 1) + b"\n" + b" " * (MOST + 1) + b"\ntwo\nthree"
) + b"y" * 200


@pytest.mark.parametrize("size", [1, 2, 3, 5, 64, 10_000])
async def test_lines_are_the_same_in_chunks_of_any_size(size: int) -> None:
    found = await lines_of(DATA, size)
    assert [(line.number, line.data.strip()) for line in found] == [
        (1, b"one"),
        (4, b""),
        (6, b"two"),
        (7, b"three" + b"y" * 200),
    ]
    assert found[1].length == MOST + 1
    for line in found:
        at = line.offset
        assert DATA[at : at + line.length].lstrip(b"\xef\xbb\xbf").startswith(line.data)
        assert (await lines_of(DATA, size, line.number, at))[0] == line, "from there on"
        if line.data:
            storage = cast("Storage", Chunks(DATA, size))
            assert await line_at(storage, (), at, line.length) == line.data


async def test_random_files_lose_no_line() -> None:
    draw = random.Random(1)
    for _ in range(200):
        words = [b"a" * draw.randint(0, 5) for _ in range(draw.randint(0, 30))]
        data = draw.choice((b"\n", b"\r\n")).join(words) + draw.choice((b"", b"\n"))
        found = await lines_of(data, draw.randint(1, 12))
        assert [line.data.strip() for line in found] == [word for word in words if word]
        numbers = [n for n, word in enumerate(words, 1) if word]
        assert [line.number for line in found] == numbers


async def checked(data: bytes) -> InputCheck:
    batch = Batch("batch_1", "t", "/v1/completions", "f", 1.0, "24h", None, None, 0.0)
    file = StoredFile("f", "t", "in", Purpose.BATCH, 0.0, None, ())
    storage = cast("Storage", Chunks(data, 1000))
    check = InputCheck(batch, file, storage, MOST, lambda name: name == "m")
    while not check.complete:
        await check.go_on()
    return check


def changed(**changes: object) -> bytes:
    fields = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}} | changes
    return json.dumps({name: value for name, value in fields.items() if value is not None}).encode()


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b'{"custom_id":"caf\xe9"}', "invalid_json_line"),
        (b"[" * 200_000, "line_too_large"),
        (b"[]", "invalid_json_line"),
        (changed(body=None), "missing_required_parameter"),
        (changed(custom_id=""), "invalid_custom_id"),
        (changed(custom_id=1), "invalid_custom_id"),
        (changed(method="GET"), "invalid_method"),
        (changed(url="/v1/other"), "invalid_url"),
        (changed(body=[]), "invalid_json_line"),
        (changed(), "model_not_found"),
        (changed(body={"model": "other"}), "model_not_found"),
        (changed(body={"model": "m", "stream": True}), "stream_not_supported"),
    ],
)
async def test_what_is_wrong_with_a_line(line: bytes, code: str) -> None:
    check = await checked(b"\n" + line)
    assert [(error.line, error.code) for error in check.errors] == [(2, code)]


def right(custom_id: str) -> bytes:
    return changed(custom_id=custom_id, body={"model": "m"}) + b"\n"


async def test_ids_that_are_there_twice_are_found() -> None:
    ids = [f"id-{n}" for n in range(20_000)]
    check = await checked(b"".join(map(right, [*ids, "id-7", "id-19999"])))
    assert [(each.line, each.code) for each in check.errors] == [
        (20_001, "duplicate_custom_id"), (20_002, "duplicate_custom_id")
    ]  # fmt: skip
    assert ["line 8 " in each.message for each in check.errors] == [True, False]


async def test_a_file_has_at_most_so_many_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(input_check, "MOST_LINES", 3)
    data = b"\n".join(right(name) for name in "abc")
    assert (await checked(data)).errors == []
    check = await checked(data + b"\n" + right("d") + right("e"))
    assert [(each.line, each.code) for each in check.errors] == [(7, "too_many_lines")]


async def test_only_the_first_hundred_errors_are_told() -> None:
    check = await checked(b"{\n" * 5000)
    assert len(check.errors) == 100
    assert check.errors[0] == LineError("invalid_json_line", check.errors[0].message, 1, None)


def test_an_answer_is_one_line_whatever_is_in_it() -> None:
    body = '{"a": "\u2028\u2029\u0085",\n"usage": {"prompt_tokens": 2, "completion_tokens": "x"}}'
    result = answered(1, "id\u2028", "job_0001", 200, body.encode())
    assert len(result.data.decode().splitlines()) == 1
    assert result.is_output
    assert result.usage.input_tokens == 2
    assert not answered(1, "id", "job_0001", 200, b"\xff").is_output

"""Forms whose file is passed on as it arrives."""

from __future__ import annotations

import asyncio
from itertools import permutations
from typing import Any

import pytest

from gateway.http.streamed_form import StreamedForm
from shared.job.errors import BadRequest, BodyTimeout

DATA = b"a\r\n--b\r\n--bound\r\n-\r\n--boundar\r\r\n\x00\xff"
PARTS = (
    b'Content-Disposition: form-data; name="purpose"\r\n\r\nbatch',
    b'Content-Disposition: form-data; name="more"\r\n\r\n\xc3\xa4\r\n',
    b'Content-Disposition: form-data; name="file"; filename="a.jsonl"\r\n'
    b"Content-Type: text/plain\r\n\r\n" + DATA,
)
FIELDS = {"purpose": "batch", "more": "ä\r\n"}
TYPE = b"multipart/form-data; boundary=boundary"


def body_of(*parts: bytes) -> bytes:
    return b"".join(b"--boundary\r\n" + part + b"\r\n" for part in parts) + b"--boundary--\r\n"


def form_of(*pieces: bytes, silence_s: float = 5, kind: bytes = TYPE) -> StreamedForm:
    messages = [
        {"type": "http.request", "body": piece, "more_body": number < len(pieces)}
        for number, piece in enumerate(pieces, 1)
    ]

    async def receive() -> Any:
        return messages.pop(0)

    return StreamedForm({"headers": [(b"content-type", kind)]}, receive, "file", silence_s)


async def read(form: StreamedForm) -> bytes:
    return b"".join([chunk async for chunk in form.file()])


@pytest.mark.parametrize("order", list(permutations(range(3))))
async def test_fields_may_have_any_order_and_parts_end_anywhere(order: tuple[int, ...]) -> None:
    body = body_of(*(PARTS[number] for number in order))
    for at in range(len(body)):
        form = form_of(body[:at], body[at:])
        assert await read(form) == DATA
        assert (form.filename, form.fields, form.body.ended) == ("a.jsonl", FIELDS, True)
    assert await read(form_of(*(body[at : at + 1] for at in range(len(body))))) == DATA


async def test_a_large_file_comes_in_chunks() -> None:
    data = DATA * 40_000
    body = body_of(PARTS[0], PARTS[2].replace(DATA, data))
    form = form_of(*(body[at : at + 65_536] for at in range(0, len(body), 65_536)))
    chunks = [chunk async for chunk in form.file()]
    assert b"".join(chunks) == data
    assert 2 < len(chunks) <= len(data) >> 18
    assert max(map(len, chunks)) < (1 << 18) + 65_536 + 100


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "last part does not end"),
        (body_of(*PARTS)[:-20], "last part does not end"),
        (b"x" + body_of(*PARTS), "not a valid form"),
        (body_of(*PARTS[:2]), "`file` is missing"),
        (body_of(PARTS[0], PARTS[0]), "twice"),
        (body_of(PARTS[2], PARTS[2]), "twice"),
        (body_of(PARTS[2].replace(b'"file"', b'"other"')), "only file of this form"),
        (body_of(PARTS[2].replace(b"a.jsonl", b"a" * 600)), "at most 512 bytes"),
        (body_of(PARTS[2].replace(b"a.jsonl", b"\xff")), "not UTF-8"),
    ],
)
async def test_other_forms_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        await read(form_of(body))


async def test_a_form_needs_a_boundary() -> None:
    with pytest.raises(BadRequest, match="boundary"):
        await read(form_of(body_of(*PARTS), kind=b"multipart/form-data"))


async def test_silence_is_limited_and_not_the_whole_time() -> None:
    body = body_of(*PARTS)
    pieces = [body[at : at + 40] for at in range(0, len(body), 40)]
    silent = False

    async def receive() -> Any:
        await asyncio.sleep(5 if silent else 0.05)
        return {"type": "http.request", "body": pieces.pop(0), "more_body": bool(pieces)}

    scope = {"headers": [(b"content-type", TYPE)]}
    assert len(pieces) * 0.05 > 0.3
    assert await read(StreamedForm(scope, receive, "file", 0.3)) == DATA
    silent, pieces = True, [body]
    with pytest.raises(BodyTimeout, match=r"No byte arrived for 0\.3 s"):
        await read(StreamedForm(scope, receive, "file", 0.3))

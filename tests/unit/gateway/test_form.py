"""Forms with a file: the fields that the gateway reads, and what it refuses."""

from __future__ import annotations

from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request

from gateway.http.form import fields_of, parse_form, without_boundary
from shared.api.multipart import boundary_in, content_type_of
from shared.job.errors import BadRequest

AUDIO = b"RIFF\r\n--\r\n\x00\xff" * 100


def form(files: dict[str, Any]) -> tuple[bytes, bytes]:
    """A form as httpx sends it, and its content type."""
    request = httpx.Request("POST", "http://x", files=files)
    return request.read(), request.headers["content-type"].encode()


def scope(content_type: bytes) -> dict[str, Any]:
    return {"type": "http", "headers": [(b"content-type", content_type)]}


def part(name: str, text: str) -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{text}\r\n'.encode()


async def parsed(body: bytes, content_type: bytes) -> dict[str, Any]:
    return await parse_form(body, scope(content_type), lambda fields: fields)


async def test_the_text_fields_are_read_and_the_file_is_not() -> None:
    body, content_type = form(
        {"model": (None, "whisper ü"), "stream": (None, "True"), "file": ("a.wav", AUDIO)}
    )
    assert await parsed(body, content_type) == {"model": "whisper ü", "stream": "True"}
    more = form({"n": (None, "70"), "response_format": (None, "text")})
    assert await parsed(*more) == {"n": "70"}
    large = form({"file": ("a.wav", AUDIO * 1000), "stream": (None, "false")})
    assert await parsed(*large) == {"stream": "false"}


async def test_vllm_reads_the_same_by_the_content_type_that_the_worker_makes() -> None:
    body, content_type = form({"model": (None, "w"), "file": ("ä.wav", AUDIO, "audio/wav")})

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    made = content_type_of(body)
    assert made.replace(b'"', b"") == content_type
    async with Request(scope(made), receive).form() as whole:
        assert whole["model"] == "w"
        file: Any = whole["file"]
        assert (file.filename, await file.read()) == ("ä.wav", AUDIO)


END = b"--b--\r\n"


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (b"", "must begin with its boundary"),
        (b"preamble\r\n" + part("a", "1") + END, "must begin with its boundary"),
        (part("a", "1").replace(b"--b", b"--other") + END, "must begin with its boundary"),
        (part("a", "1"), "last part does not end"),
        (part("a", "1")[:-2], "last part does not end"),
        (b"--b\r\nno header\r\n\r\n", "not a valid form"),
        (b"--b\r\nContent-Type: a/b\r\n\r\n1\r\n" + END, "Content-Disposition"),
        (part("a", "1") + part("a", "2") + END, "`a` is there twice"),
        (part("a", "x" * (1 << 16) + "y") + END, "at most 65536 bytes"),
        (b"".join(part(f"f{n}", "") for n in range(65)) + END, "at most 64 parts"),
        (part("a", "X").replace(b"X", b"\xff") + END, "not UTF-8"),
        (part("X", "1").replace(b"X", b"\xff") + END, "not UTF-8"),
    ],
)
async def test_other_forms_are_refused(body: bytes, problem: str) -> None:
    with pytest.raises(BadRequest, match=problem):
        await parsed(body, b"multipart/form-data; boundary=b")


@pytest.mark.parametrize(
    "content_type", [b"multipart/form-data", b"multipart/form-data; boundary=", b""]
)
async def test_a_content_type_without_a_boundary_is_refused(content_type: bytes) -> None:
    with pytest.raises(BadRequest, match="must begin with its boundary"):
        await parsed(part("a", "1") + END, content_type)


async def test_a_list_may_have_several_values() -> None:
    body = part("timestamp_granularities[]", "word") + part("timestamp_granularities[]", "segment")
    assert len(await parsed(body + END, b"multipart/form-data; boundary=b")) == 1


def test_two_sendings_of_a_form_differ_in_their_boundary_only() -> None:
    (one, _), (other, _) = (form({"file": ("a.wav", AUDIO)}) for _ in range(2))
    assert one != other
    assert without_boundary(one) == without_boundary(other)


@given(st.binary(max_size=200), st.sampled_from([b"", b"--b\r\n", part("a", "1"), END]))
def test_any_bytes_are_read_or_refused(rest: bytes, start: bytes) -> None:
    try:
        fields = fields_of(start + rest, b"b")
    except BadRequest:
        return
    assert all(isinstance(value, str | bool | int) for value in fields.values())


@pytest.mark.parametrize("boundary", [b"b", b"-" * 70, b"a b", b"x'()+_,./:=?"])
def test_the_boundary_is_in_the_first_line(boundary: bytes) -> None:
    assert boundary_in(b"--" + boundary + b"\r\nrest") == boundary


@pytest.mark.parametrize(
    "body",
    [b"", b"--\r\n", b"--b", b"--b\n", b'--a"\r\n', b"--a \r\n", b"--" + b"a" * 71 + b"\r\n"],
)
def test_other_first_lines_have_none(body: bytes) -> None:
    assert boundary_in(body) == b""

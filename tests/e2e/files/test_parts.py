"""Uploads in parts, and ranges of a file's content: two gateways, one folder."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.client import http
from tests.harness.fleet import Stack

LINES = b'{"a": 1}\r\n{"b": "\xc3\xa4"}\n' * 50
MAX_BYTES = 3 << 20


class Fleet(NamedTuple):
    one: OpenAI
    other: OpenAI
    folder: Path


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    folder = module_stack.folder / "files"
    gateways = [
        module_stack.gateway(
            api_keys="ann:k-ann,ben:k-ben",
            storage_url=str(folder),
            max_file_bytes=MAX_BYTES,
        )
        for _ in range(2)
    ]
    one, other = (
        OpenAI(base_url=f"{gateway.url}/v1", api_key="k-ann", max_retries=0) for gateway in gateways
    )
    with one, other:
        yield Fleet(one, other, folder)


@pytest.fixture(autouse=True)
def _nothing_left(fleet: Fleet) -> Iterator[None]:
    """What a test has stored is deleted, and then no blob is left."""
    yield
    for file in fleet.one.files.list():
        fleet.one.files.delete(file.id)
    assert blobs(fleet) == []


def blobs(fleet: Fleet) -> list[str]:
    """What is in the storage, but for the fleet's id."""
    found = [path for path in fleet.folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in found if path.parent.name != "fleets")


@pytest.mark.parametrize(
    ("asked", "status", "start", "end"),
    [
        ("bytes=0-9", 206, 0, 10),
        ("bytes=5-", 206, 5, None),
        ("bytes=-7", 206, -7, None),
        ("bytes=0-0,5-6", 200, 0, None),
        ("lines=1-2", 200, 0, None),
    ],
)
def test_one_range_is_served(
    fleet: Fleet, asked: str, status: int, start: int, end: int | None
) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    answer = fleet.other.files.with_raw_response.content(file.id, extra_headers={"range": asked})
    assert (answer.status_code, answer.content) == (status, LINES[start:end])
    if status == 206:
        first = start % len(LINES)
        shown = f"bytes {first}-{first + len(answer.content) - 1}/{len(LINES)}"
        assert answer.headers["content-range"] == shown


def test_a_range_behind_the_end_is_refused(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    with pytest.raises(openai.APIStatusError) as refused:
        fleet.one.files.content(file.id, extra_headers={"range": f"bytes={len(LINES)}-"})
    assert refused.value.status_code == 416
    assert refused.value.response.headers["content-range"] == f"bytes */{len(LINES)}"


def test_an_upload_in_parts_is_a_file(fleet: Fleet) -> None:
    data = os.urandom(MAX_BYTES)
    upload = fleet.one.uploads.upload_file_chunked(
        file=data,
        filename="big.bin",
        bytes=len(data),
        mime_type="application/octet-stream",
        purpose="user_data",
        part_size=MAX_BYTES // 3 - 5,
        md5=hashlib.md5(data).hexdigest(),
    )
    assert upload.status == "completed"
    assert upload.file
    assert upload.file.bytes == len(data)
    assert fleet.other.files.retrieve(upload.file.id) == upload.file
    assert fleet.other.files.content(upload.file.id).content == data
    across = {"range": f"bytes={MAX_BYTES // 3 - 10}-{MAX_BYTES // 3 + 10}"}
    got = fleet.other.files.content(upload.file.id, extra_headers=across).content
    assert got == data[MAX_BYTES // 3 - 10 : MAX_BYTES // 3 + 11]


def make_upload(fleet: Fleet, n_bytes: int = 6) -> str:
    return fleet.one.uploads.create(
        bytes=n_bytes, filename="x", mime_type="text/plain", purpose="batch"
    ).id


def test_parts_may_come_in_any_order_and_be_left_out(fleet: Fleet) -> None:
    upload_id = make_upload(fleet)
    parts = [
        (fleet.one if number % 2 else fleet.other).uploads.parts.create(upload_id, data=data).id
        for number, data in enumerate((b"def", b"abc"))
    ]
    done = fleet.one.uploads.complete(upload_id, part_ids=parts[::-1])
    again = fleet.other.uploads.complete(upload_id, part_ids=parts[::-1])
    assert done == again
    assert done.file
    assert fleet.one.files.content(done.file.id).content == b"abcdef"
    with pytest.raises(openai.BadRequestError, match="completed"):
        fleet.one.uploads.parts.create(upload_id, data=b"x")
    with pytest.raises(openai.BadRequestError, match="completed"):
        fleet.one.uploads.cancel(upload_id)


def test_an_upload_is_completed_as_it_was_announced_or_not_at_all(fleet: Fleet) -> None:
    upload_id = make_upload(fleet)
    part = fleet.one.uploads.parts.create(upload_id, data=b"abc").id
    with pytest.raises(openai.BadRequestError, match="more bytes than the 6"):
        fleet.one.uploads.parts.create(upload_id, data=b"defg")
    last = fleet.one.uploads.parts.create(upload_id, data=b"def").id
    for wrong, param in [
        ({"part_ids": []}, "part_ids"),
        ({"part_ids": [part]}, "part_ids"),
        ({"part_ids": [part, part]}, "part_ids"),
        ({"part_ids": [part, "part_x"]}, "part_ids[1]"),
        ({"part_ids": [part, last], "md5": hashlib.md5(b"x").hexdigest()}, "md5"),
        ({"part_ids": [part, last], "md5": "x"}, "md5"),
        ({"part_ids": "x"}, "part_ids"),
    ]:
        with pytest.raises(openai.BadRequestError) as refused:
            fleet.one.uploads.complete(upload_id, **wrong)  # type: ignore[arg-type]
        assert refused.value.param == param
    assert fleet.one.uploads.cancel(upload_id).status == "cancelled"
    assert fleet.other.uploads.cancel(upload_id).status == "cancelled"
    assert blobs(fleet) == []
    with pytest.raises(openai.BadRequestError, match="cancelled"):
        fleet.one.uploads.complete(upload_id, part_ids=[part, last])


@pytest.mark.parametrize(
    ("changes", "param"),
    [
        ({"purpose": "vision"}, "purpose"),
        ({"bytes": 0}, "bytes"),
        ({"bytes": "6"}, "bytes"),
        ({"filename": ""}, "filename"),
        ({"more": 1}, "more"),
        ({"expires_after": {"anchor": "created_at", "seconds": 60}}, "expires_after[seconds]"),
        ({"expires_after": {"anchor": "created_at"}}, "expires_after.seconds"),
    ],
)
def test_a_wrong_upload_is_refused(fleet: Fleet, changes: dict[str, Any], param: str) -> None:
    body = {"bytes": 6, "filename": "x", "mime_type": "text/plain", "purpose": "batch"} | changes
    with pytest.raises(openai.BadRequestError) as refused:
        fleet.one.post("/uploads", body=body, cast_to=httpx.Response)
    assert refused.value.param == param


def test_uploads_have_the_limits_of_files(fleet: Fleet) -> None:
    with pytest.raises(openai.APIStatusError) as refused:
        make_upload(fleet, MAX_BYTES + 1)
    assert (refused.value.status_code, refused.value.code) == (413, "file_too_large")
    for call in (fleet.one.uploads.cancel, fleet.one.uploads.complete):
        with pytest.raises(openai.NotFoundError):
            call("upload_x", **({} if call == fleet.one.uploads.cancel else {"part_ids": []}))
    with pytest.raises(openai.NotFoundError):
        fleet.one.uploads.parts.create("upload_x", data=b"x")
    upload_id = make_upload(fleet)
    with pytest.raises(openai.NotFoundError):
        fleet.other.with_options(api_key="k-ben").uploads.cancel(upload_id)


def test_without_a_storage_the_routes_are_not_there(fleet: Fleet, module_stack: Stack) -> None:
    gateway = module_stack.gateway()
    for path in ("", "/x/parts", "/x/complete", "/x/cancel"):
        sent: Any = {"files": {"data": ("x", b"x")}} if path == "/x/parts" else {"json": {}}
        answer = http.post(f"{gateway.url}/v1/uploads{path}", **sent)
        assert answer.status_code == 501, (path, answer.text)
        assert answer.json()["error"]["code"] == "storage_not_configured"

"""OpenAI's Files and Uploads APIs with the unmodified SDK: two gateways, one folder.

Each call may go to either gateway.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import openai
import pytest
from openai import OpenAI

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer

LINES = b'{"a": 1}\r\n{"b": "\xc3\xa4"}\n' * 50
MAX_BYTES = 3 << 20
QUOTA = 8 << 20


class Fleet(NamedTuple):
    one: OpenAI
    other: OpenAI
    folder: Path
    gateways: list[Process]


@pytest.fixture(scope="module")
def fleet(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    folder = stack.folder / "files"
    gateways = [
        stack.gateway(
            api_keys="ann:k-ann,ben:k-ben,cem:k-cem",
            storage_url=str(folder),
            max_file_bytes=MAX_BYTES,
            max_stored_bytes=QUOTA,
            body_timeout_s=1.5,
        )
        for _ in range(2)
    ]
    one, other = (
        OpenAI(base_url=f"{gateway.url}/v1", api_key="k-ann", max_retries=0) for gateway in gateways
    )
    with one, other:
        yield Fleet(one, other, folder, gateways)
    stack.close()


@pytest.fixture(autouse=True)
def _nothing_left(fleet: Fleet) -> Iterator[None]:
    """What a test has stored is deleted, and then no blob is left."""
    yield
    for key in ("k-ann", "k-ben"):
        client = fleet.one.with_options(api_key=key)
        for file in client.files.list():
            client.files.delete(file.id)
    assert blobs(fleet) == []


def blobs(fleet: Fleet) -> list[str]:
    """What is in the storage, but for the fleet's id."""
    found = [path for path in fleet.folder.rglob("*") if path.is_file()]
    return sorted(path.name for path in found if path.parent.name != "fleets")


def post(fleet: Fleet, **of_httpx: Any) -> httpx.Response:
    return httpx.post(
        f"{fleet.one.base_url}files", headers={"authorization": "Bearer k-ann"}, **of_httpx
    )


def test_a_file_is_stored_and_any_gateway_serves_it(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=("in ä.jsonl", io.BytesIO(LINES)), purpose="batch")
    assert (file.object, file.bytes, file.status) == ("file", len(LINES), "processed")
    assert (file.filename, file.purpose) == ("in ä.jsonl", "batch")
    assert file.expires_at == file.created_at + 30 * 86_400
    assert fleet.other.files.retrieve(file.id) == file
    content = fleet.other.files.content(file.id)
    assert content.content == LINES
    headers = content.response.headers
    assert headers["content-disposition"] == (
        "attachment; filename=\"in _.jsonl\"; filename*=UTF-8''in%20%C3%A4.jsonl"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-length"] == str(len(LINES))
    assert fleet.other.files.delete(file.id).deleted
    assert blobs(fleet) == []
    for call in (fleet.one.files.retrieve, fleet.one.files.content, fleet.one.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)


def test_a_file_of_another_tenant_is_unknown(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=LINES, purpose="user_data")
    assert file.expires_at is None
    ben = fleet.other.with_options(api_key="k-ben")
    assert list(ben.files.list()) == []
    for call in (ben.files.retrieve, ben.files.content, ben.files.delete):
        with pytest.raises(openai.NotFoundError):
            call(file.id)
    assert fleet.one.files.content(file.id).content == LINES


def test_files_expire_when_clients_say_so(fleet: Fleet) -> None:
    expiry = {"anchor": "created_at", "seconds": 3600}
    file = fleet.one.files.create(file=LINES, purpose="user_data", expires_after=expiry)
    assert file.expires_at == file.created_at + 3600


def test_lists_have_pages(fleet: Fleet) -> None:
    purposes = ["batch", "user_data", "batch"]
    ids = [fleet.one.files.create(file=LINES, purpose=each).id for each in purposes]
    assert [file.id for file in fleet.other.files.list()] == ids[::-1]
    assert [file.id for file in fleet.other.files.list(limit=1, order="asc")] == ids
    assert [file.id for file in fleet.other.files.list(purpose="batch")] == [ids[2], ids[0]]
    page = fleet.other.files.list(limit=2)
    assert page.has_more
    assert page.model_extra == {"object": "list", "first_id": ids[2], "last_id": ids[1]}
    with pytest.raises(openai.BadRequestError) as wrong:
        fleet.one.files.list(after="file-x")
    assert wrong.value.param == "after"


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


def test_head_has_the_length_and_no_content(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    url = f"{fleet.one.base_url}files/{file.id}/content"
    answer = httpx.head(url, headers={"authorization": "Bearer k-ann"})
    assert answer.status_code == 200
    assert answer.headers["content-length"] == str(len(LINES))


FILE = {"file": ("a.jsonl", LINES)}


@pytest.mark.parametrize(
    ("files", "fields", "param"),
    [
        ({}, {"purpose": "batch"}, "file"),
        ({"purpose": (None, "batch")}, {}, "file"),
        ({"purpose": (None, "batch"), "file": (None, "text")}, {}, "file"),
        ({"file": ("empty", b"")}, {"purpose": "batch"}, "file"),
        (FILE, {}, "purpose"),
        (FILE, {"purpose": "fine-tune"}, "purpose"),
        (FILE | {"purpose": (None, "vision")}, {}, "purpose"),
        (FILE | {"other": ("b", b"b")}, {"purpose": "batch"}, "other"),
        (FILE, {"purpose": "batch", "more": "1"}, "more"),
        (FILE, {"purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        *(
            (
                FILE,
                {
                    "purpose": "batch",
                    "expires_after[anchor]": "created_at",
                    "expires_after[seconds]": seconds,
                },
                "expires_after[seconds]",
            )
            for seconds in ("3599", "2592001", "-1", "1e5", "")
        ),
    ],
)
def test_a_wrong_form_is_refused(
    fleet: Fleet, files: dict[str, Any], fields: dict[str, str], param: str
) -> None:
    if not files:
        answer = post(fleet, files={"x": (None, "y")}, data=fields)
    else:
        answer = post(fleet, files=files, data=fields)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert blobs(fleet) == []


@pytest.mark.parametrize("body", [b"nonsense", b"--b\r\nx", b"", b"--b\r\n\r\n\r\n--b--"])
def test_what_is_no_form_is_refused(fleet: Fleet, body: bytes) -> None:
    kind = {"authorization": "Bearer k-ann", "content-type": "multipart/form-data; boundary=b"}
    answer = httpx.post(f"{fleet.one.base_url}files", headers=kind, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    other = httpx.post(
        f"{fleet.one.base_url}files", headers=kind | {"content-type": "text/plain"}, content=body
    )
    assert other.status_code == 415


def test_a_broken_form_leaves_nothing(fleet: Fleet) -> None:
    """The file's bytes are in the storage when it turns out."""
    begin = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    kind = {"authorization": "Bearer k-ann", "content-type": "multipart/form-data; boundary=b"}
    body = begin + b"x" * (2 << 20)
    answer = httpx.post(f"{fleet.one.base_url}files", headers=kind, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert blobs(fleet) == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_may_be_too_large(fleet: Fleet, announced: bool) -> None:
    request = httpx.Request("POST", "http://x", files={"file": ("a", b"x" * (MAX_BYTES + 70_000))})
    body, kind = request.read(), request.headers["content-type"]

    def chunks() -> Iterator[bytes]:
        yield from (body[at : at + 65_536] for at in range(0, len(body), 65_536))

    answer = httpx.post(
        f"{fleet.one.base_url}files",
        headers={"authorization": "Bearer k-ann", "content-type": kind},
        content=body if announced else chunks(),
    )
    assert answer.status_code == 413, answer.text
    assert answer.json()["error"]["code"] == "file_too_large"
    assert blobs(fleet) == []


def test_the_tenants_quota_is_a_limit(fleet: Fleet) -> None:
    for _ in range(2):
        fleet.one.files.create(file=os.urandom(MAX_BYTES), purpose="user_data")
    with pytest.raises(openai.PermissionDeniedError) as refused:
        fleet.other.files.create(file=os.urandom(MAX_BYTES), purpose="user_data")
    assert refused.value.code == "storage_quota_exceeded"
    assert len(blobs(fleet)) == 2
    ben = fleet.other.with_options(api_key="k-ben")
    ben.files.create(file=LINES, purpose="user_data")


# --- in parts ---


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


# --- without a storage ---


def test_without_a_storage_the_routes_are_not_there(stack: Stack) -> None:
    gateway = stack.gateway()
    for method, path in [
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/x"),
        ("DELETE", "/v1/files/x"),
        ("GET", "/v1/files/x/content"),
        ("POST", "/v1/uploads"),
        ("POST", "/v1/uploads/x/parts"),
        ("POST", "/v1/uploads/x/complete"),
        ("POST", "/v1/uploads/x/cancel"),
    ]:
        body: dict[str, Any] = {}
        if method == "POST" and path.endswith(("files", "parts")):
            body = {"files": FILE}
        elif method == "POST":
            body = {"json": {}}
        answer = httpx.request(method, gateway.url + path, **body)
        assert answer.status_code == 501, (path, answer.text)
        assert answer.json()["error"]["code"] == "storage_not_configured"
        assert "FLOTILLA_STORAGE_URL" in answer.json()["error"]["message"]

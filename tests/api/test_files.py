"""OpenAI's Files API with the unmodified SDK: two gateways, one folder.

Each call may go to either gateway.
"""

from __future__ import annotations

import io
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
QUOTA = 8 << 20


class Fleet(NamedTuple):
    one: OpenAI
    other: OpenAI
    folder: Path


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    folder = module_stack.folder / "files"
    gateways = [
        module_stack.gateway(
            api_keys="ann:k-ann,ben:k-ben,cem:k-cem",
            storage_url=str(folder),
            max_file_bytes=MAX_BYTES,
            max_stored_bytes=QUOTA,
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
    return http.post(
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


@pytest.mark.parametrize("order", ["asc", "desc"])
def test_pages_go_on_behind_files_that_were_deleted(fleet: Fleet, order: Any) -> None:
    ids = [fleet.one.files.create(file=LINES, purpose="user_data").id for _ in range(5)]
    seen = []
    for file in fleet.other.files.list(limit=2, order=order, purpose="user_data"):
        if file.id in ids:
            seen.append(file.id)
            fleet.one.files.delete(file.id)
    assert seen == (ids if order == "asc" else ids[::-1])


def test_head_has_the_length_and_no_content(fleet: Fleet) -> None:
    file = fleet.one.files.create(file=LINES, purpose="batch")
    url = f"{fleet.one.base_url}files/{file.id}/content"
    answer = http.head(url, headers={"authorization": "Bearer k-ann"})
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
    answer = http.post(f"{fleet.one.base_url}files", headers=kind, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    other = http.post(
        f"{fleet.one.base_url}files", headers=kind | {"content-type": "text/plain"}, content=body
    )
    assert other.status_code == 415


def test_a_broken_form_leaves_nothing(fleet: Fleet) -> None:
    """The file's bytes are in the storage when it turns out."""
    begin = b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
    kind = {"authorization": "Bearer k-ann", "content-type": "multipart/form-data; boundary=b"}
    body = begin + b"x" * (2 << 20)
    answer = http.post(f"{fleet.one.base_url}files", headers=kind, content=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "file")
    assert blobs(fleet) == []


@pytest.mark.parametrize("announced", [True, False])
def test_a_file_may_be_too_large(fleet: Fleet, announced: bool) -> None:
    request = httpx.Request("POST", "http://x", files={"file": ("a", b"x" * (MAX_BYTES + 70_000))})
    body, kind = request.read(), request.headers["content-type"]

    def chunks() -> Iterator[bytes]:
        yield from (body[at : at + 65_536] for at in range(0, len(body), 65_536))

    answer = http.post(
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


def test_without_a_storage_the_routes_are_not_there(fleet: Fleet, module_stack: Stack) -> None:
    gateway = module_stack.gateway()
    for method, path in [
        ("POST", "/v1/files"),
        ("GET", "/v1/files"),
        ("GET", "/v1/files/x"),
        ("DELETE", "/v1/files/x"),
        ("GET", "/v1/files/x/content"),
    ]:
        body: dict[str, Any] = {}
        if method == "POST":
            body = {"files": FILE}
        answer = http.request(method, gateway.url + path, **body)
        assert answer.status_code == 501, (path, answer.text)
        assert answer.json()["error"]["code"] == "storage_not_configured"
        assert "FLOTILLA_STORAGE_URL" in answer.json()["error"]["message"]

"""Files whose upload ends badly leave nothing; a storage that fails is told, and found again."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import IMPATIENT_OF_BODIES
from tests.harness.waiting import wait_for

BEGIN = (
    b'--b\r\nContent-Disposition: form-data; name="purpose"\r\n\r\nuser_data\r\n'
    b'--b\r\nContent-Disposition: form-data; name="file"; filename="a"\r\n\r\n'
)
END = b"\r\n--b--\r\n"
MB = 1 << 20


@pytest.fixture
def gateway(stack: Stack) -> Process:
    # A connection whose request was read to its end is closed, too: `answer` waits for that.
    return stack.gateway(storage_url=str(folder(stack)), idle_connection_s=1)


def folder(stack: Stack) -> Path:
    return stack.folder / "files"


def blobs(stack: Stack) -> list[Path]:
    found = folder(stack).rglob("*") if folder(stack).is_dir() else ()
    return [path for path in found if path.is_file() and path.parent.name != "fleets"]


def start_upload(gateway: Process, n_bytes: int) -> socket.socket:
    """A connection on which an upload has begun."""
    where = urlsplit(gateway.url)
    client = socket.create_connection((where.hostname, where.port), timeout=60)
    head = (
        f"POST /v1/files HTTP/1.1\r\nHost: {where.netloc}\r\nContent-Length: {n_bytes}\r\n"
        "Content-Type: multipart/form-data; boundary=b\r\n\r\n"
    )
    client.sendall(head.encode() + BEGIN)
    return client


def answer(client: socket.socket) -> tuple[int, str]:
    """Status and code of the error on a connection that is closed afterwards."""
    whole = b""
    while data := client.recv(65_536):
        whole += data
    head, _, body = whole.partition(b"\r\n\r\n")
    return int(head.split()[1]), json.loads(body)["error"]["code"]


def upload(gateway: Process, n_mb: int) -> httpx.Response:
    def chunks() -> Iterator[bytes]:
        yield BEGIN
        for _ in range(n_mb):
            yield b"x" * MB
        yield END

    kind = {"content-type": "multipart/form-data; boundary=b"}
    return http.post(f"{gateway.url}/v1/files", headers=kind, content=chunks(), timeout=120)


def test_a_silent_client_gets_408(stack: Stack) -> None:
    gateway = stack.gateway(
        storage_url=str(folder(stack)), idle_connection_s=1, **IMPATIENT_OF_BODIES
    )
    with start_upload(gateway, 100 * MB) as client:
        client.sendall(b"x" * 12 * MB)
        assert answer(client) == (408, "body_timeout")
    assert blobs(stack) == []


def test_a_client_that_leaves_leaves_nothing(stack: Stack, gateway: Process) -> None:
    with start_upload(gateway, 100 * MB) as client:
        client.sendall(b"x" * 12 * MB)
        wait_for(lambda: blobs(stack) != [], "parts of the file are there")
    wait_for(lambda: blobs(stack) == [], "they are gone")


def test_a_client_that_still_sends_gets_its_answer(stack: Stack, gateway: Process) -> None:
    """And is not read to its end: that would take for ever."""
    with start_upload(gateway, 40 << 30) as client:
        assert answer(client) == (413, "file_too_large")
    assert blobs(stack) == []


def test_a_killed_gateways_upload_is_no_file(stack: Stack, gateway: Process) -> None:
    with start_upload(gateway, 100 * MB) as client:
        client.sendall(b"x" * 12 * MB)
        wait_for(lambda: blobs(stack) != [], "parts of the file are there")
        gateway.kill()
    other = stack.gateway(storage_url=str(folder(stack)))
    assert http.get(f"{other.url}/v1/files").json()["data"] == []


def test_a_storage_that_fails_is_503(stack: Stack, gateway: Process) -> None:
    done = upload(gateway, 1).json()
    good = folder(stack).rename(stack.folder / "aside")
    folder(stack).write_text("no folder")
    content = f"{gateway.url}/v1/files/{done['id']}/content"

    def is_logged() -> bool:
        assert upload(gateway, 1).status_code == 503
        return str(folder(stack)) in gateway.log.read_text()

    wait_for(is_logged, "the log says which storage")
    for refused in (upload(gateway, 20), http.get(content)):
        assert refused.status_code == 503, refused.text
        assert refused.json()["error"]["code"] == "storage_unavailable"
        assert str(folder(stack)) not in refused.text
    folder(stack).unlink()
    good.rename(folder(stack))
    assert len(blobs(stack)) == 1
    assert upload(gateway, 1).status_code == 200


def test_a_storage_that_fails_in_the_middle_is_503(stack: Stack, gateway: Process) -> None:
    rest = b"x" * (100 * MB - 12 * MB - len(BEGIN) - len(END)) + END
    with start_upload(gateway, 100 * MB) as client:
        client.sendall(b"x" * 12 * MB)
        wait_for(lambda: blobs(stack) != [], "parts of the file are there")
        shutil.rmtree(folder(stack))
        folder(stack).write_text("no folder")
        client.sendall(rest)
        assert answer(client) == (503, "storage_unavailable")
    assert http.get(f"{gateway.url}/v1/files").json()["data"] == []


def test_a_removed_or_another_folder_is_not_the_fleets(stack: Stack, gateway: Process) -> None:
    assert upload(gateway, 1).status_code == 200
    other = stack.gateway(storage_url=str(stack.folder / "other"))
    refused = upload(other, 1)
    assert refused.status_code == 503
    assert "not the one in which the fleet's files are" in refused.json()["error"]["message"]
    shutil.rmtree(folder(stack))

    def is_refused() -> bool:
        answer = upload(gateway, 1)
        if answer.status_code == 200:  # before the gateway has noticed
            http.delete(f"{gateway.url}/v1/files/{answer.json()['id']}")
        return answer.status_code == 503

    wait_for(is_refused, "uploads are refused")
    assert blobs(stack) == []

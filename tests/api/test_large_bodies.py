"""Bodies that are compressed, and large ones: what is taken, and how much at a time."""

from __future__ import annotations

import gzip
import json
import socket
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer
from tests.harness.waiting import wait_for

MB = 1 << 20
LIMIT = 2 * MB
HELD = 4 * MB
SETTING = "FLOTILLA_MAX_BODY_BYTES"
ANN, BOB = bearer("key-of-ann-123456"), bearer("key-of-bob-123456")


def _zstd(data: bytes, window_log: int = 0) -> bytes:
    if sys.version_info >= (3, 14):
        from compression import zstd
    else:
        from backports import zstd
    parameter = zstd.CompressionParameter
    options = {parameter.window_log: window_log, parameter.content_size_flag: 0}
    packer = zstd.ZstdCompressor(options=options if window_log else None)
    return bytes(packer.compress(data) + packer.flush())


def _raw_deflate(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "gzip": ("gzip", gzip.compress),
    "GZip": ("GZip", gzip.compress),
    "x-gzip": ("x-gzip", gzip.compress),
    "deflate": ("deflate", zlib.compress),
    "raw deflate": ("deflate", _raw_deflate),
    "zstd": ("zstd", _zstd),
}
CODINGS = ("gzip", "deflate", "raw deflate", "zstd")
LARGE = chat(" ".join(str(n * n) for n in range(30_000)), max_tokens=2)
"""More than is unpacked at once."""


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Stack:
    module_stack.worker(sim_max_model_len=1_000_000, sim_prefill_us_per_token=0, sim_step_ms=1)
    return module_stack


@pytest.fixture(scope="module")
def gateway(fleet: Stack, tmp_path_factory: pytest.TempPathFactory) -> Process:
    return fleet.gateway(
        max_body_bytes=LIMIT,
        max_held_body_bytes=HELD,
        api_keys="ann:key-of-ann-123456,bob:key-of-bob-123456",
        storage_url=str(tmp_path_factory.mktemp("files")),
    )


def send(gateway: Process, path: str, data: bytes, coding: str = "", **more: Any) -> Any:
    headers = {"content-type": "application/json", **ANN}
    if coding:
        headers["content-encoding"] = coding
    return http.post(gateway.url + path, content=data, headers=headers | more)


@pytest.mark.parametrize("packer", PACKERS)
@pytest.mark.parametrize("body", [chat(max_tokens=2), LARGE], ids=["small", "large"])
def test_a_compressed_body_is_answered_as_a_plain_one(
    gateway: Process, packer: str, body: dict[str, Any]
) -> None:
    coding, pack = PACKERS[packer]
    data = json.dumps(body).encode()
    plain, packed = send(gateway, CHAT, data), send(gateway, CHAT, pack(data), coding)
    assert (plain.status_code, packed.status_code) == (200, 200), packed.text
    assert packed.json()["usage"] == plain.json()["usage"]


@pytest.mark.parametrize("packer", CODINGS)
def test_the_engine_gets_the_body_unpacked(gateway: Process, packer: str) -> None:
    coding, pack = PACKERS[packer]
    answer = send(gateway, "/jobs", pack(json.dumps({"body": LARGE}).encode()), coding)
    assert answer.status_code == 202, answer.text
    url = f"{gateway.url}/jobs/{answer.json()['id']}/request"
    assert http.get(url, headers=ANN).json()["body"] == LARGE


@pytest.mark.parametrize("packer", CODINGS)
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/messages", {"model": MODEL, "max_tokens": 2, "messages": chat()["messages"]}),
        ("/v1/responses", {"model": MODEL, "input": "hello", "max_output_tokens": 2}),
        ("/v1/conversations", {"items": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_other_apis_take_compressed_bodies(
    gateway: Process, packer: str, path: str, body: dict[str, Any]
) -> None:
    coding, pack = PACKERS[packer]
    answer = send(gateway, path, pack(json.dumps(body).encode()), coding)
    assert answer.status_code == 200, answer.text


@pytest.mark.parametrize("packer", CODINGS)
def test_a_compressed_form_is_stored_unpacked(gateway: Process, packer: str) -> None:
    coding, pack = PACKERS[packer]
    content = json.dumps(LARGE).encode()
    form = httpx.Request("POST", "http://x", files={"file": content}, data={"purpose": "user_data"})
    kind, packed = {"content-type": form.headers["content-type"]}, pack(form.read())
    answer = send(gateway, "/v1/files", packed, coding, **kind)
    assert answer.status_code == 200, answer.text
    url = f"{gateway.url}/v1/files/{answer.json()['id']}/content"
    assert http.get(url, headers=ANN).content == content
    for wrong in (packed[:-1], packed[:100], form.read()):
        assert send(gateway, "/v1/files", wrong, coding, **kind).status_code == 400


def test_a_coding_of_several_members_is_one_body(gateway: Process) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    for coding, pack in (PACKERS["gzip"], PACKERS["zstd"]):
        packed = pack(data[:20]) + pack(b"") + pack(data[20:])
        assert send(gateway, CHAT, packed, coding).status_code == 200
        assert send(gateway, CHAT, pack(data) + pack(b"") * 10_000, coding).status_code == 400


@pytest.mark.parametrize("packer", CODINGS)
@pytest.mark.parametrize("n_bytes", [LIMIT + 1, 200 * MB])
def test_a_body_that_unpacks_to_more_than_the_limit_is_refused(
    gateway: Process, packer: str, n_bytes: int
) -> None:
    coding, pack = PACKERS[packer]
    answer = send(gateway, CHAT, pack(b" " * n_bytes), coding)
    assert answer.status_code == 413, answer.text
    error = answer.json()["error"]
    assert error["code"] == "body_too_large"
    assert SETTING in error["message"]
    assert str(LIMIT) in error["message"]


@pytest.mark.parametrize("packer", CODINGS)
@pytest.mark.parametrize("body", [chat(max_tokens=2), LARGE], ids=["small", "large"])
def test_what_does_not_unpack_is_refused(
    gateway: Process, packer: str, body: dict[str, Any]
) -> None:
    coding, pack = PACKERS[packer]
    data = json.dumps(body).encode()
    packed = pack(data)
    wrong = {
        "cut": packed[:-1],
        "half": packed[: len(packed) // 2],
        "nothing": b"",
        "one byte": packed[:1],
        "not compressed": data,
        "data behind": packed + b"x" * 100,
    }
    for name, sent in wrong.items():
        answer = send(gateway, CHAT, sent, coding)
        assert (name, answer.status_code) == (name, 400), answer.text
        assert answer.json()["error"]["type"] == "invalid_request_error"
    for at in range(len(packed) // 4, len(packed), len(packed) // 4 + 1):
        damaged = packed[:at] + bytes([packed[at] ^ 255]) + packed[at + 1 :]
        has_checksum = packer in ("gzip", "deflate")
        assert send(gateway, CHAT, damaged, coding).status_code == 400 or not has_checksum


def test_a_window_that_takes_much_memory_is_refused(gateway: Process) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    assert send(gateway, CHAT, _zstd(data, 23), "zstd").status_code == 200
    assert send(gateway, CHAT, _zstd(data, 27), "zstd").status_code == 400


@pytest.mark.parametrize("coding", ["br", "compress", "gzip, zstd", "gzip,gzip", "x" * 300])
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/v1/conversations", "/v1/files"])
def test_another_coding_is_refused_with_those_that_work(
    gateway: Process, path: str, coding: str
) -> None:
    data = json.dumps(chat(max_tokens=2)).encode()
    kind = "multipart/form-data; boundary=b" if path == "/v1/files" else "application/json"
    answer = send(gateway, path, data, coding, **{"content-type": kind})
    assert answer.status_code == 415, answer.text
    assert answer.headers["accept-encoding"] == "gzip, deflate, zstd"
    assert len(answer.content) < 1000


# --- how much at a time ---

Connect = Callable[..., socket.socket]


@pytest.fixture
def begin(gateway: Process) -> Iterator[Connect]:
    """Opens connections that have sent the head of a request and `sent` bytes of its body."""
    with ExitStack() as open_ones:

        def begin(key: dict[str, str], sent: int, announced: int) -> socket.socket:
            address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            client = open_ones.enter_context(socket.create_connection(address, timeout=60))
            head = (
                f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
                f"authorization: {key['authorization']}\r\ncontent-length: {announced}\r\n\r\n"
            )
            client.sendall(head.encode() + b" " * sent)
            return client

        yield begin


def status_of(client: socket.socket) -> int:
    data = client.recv(1 << 16)
    return int(data.split()[1]) if data else 0


def test_one_tenant_holds_a_part_of_what_all_may_send_at_a_time(
    gateway: Process, begin: Connect
) -> None:
    data = json.dumps(LARGE).encode()
    slow = begin(ANN, 200_000, LIMIT)  # her half, until it has ended

    def full() -> bool:
        answer = send(gateway, CHAT, data)
        assert answer.status_code in (200, 503), answer.text
        if answer.status_code == 200:
            return False
        assert answer.json()["error"]["code"] == "too_many_bodies"
        assert int(answer.headers["retry-after"]) > 0
        return True

    wait_for(full, "a second body is refused")
    assert send(gateway, CHAT, json.dumps(chat(max_tokens=2)).encode()).status_code == 200
    assert send(gateway, CHAT, data, **BOB).status_code == 200
    slow.close()
    wait_for(lambda: send(gateway, CHAT, data).status_code == 200, "there is room again")


def test_a_body_waits_for_room(gateway: Process, begin: Connect) -> None:
    slow = begin(ANN, 200_000, LIMIT)
    waits = begin(ANN, 200_000, LIMIT)
    for client in (slow, waits):
        client.sendall(b" " * (LIMIT - 200_000))
    assert status_of(slow) == status_of(waits) == 400  # it is no JSON


def test_a_body_of_the_largest_size_is_taken_however_little_may_be_held(fleet: Stack) -> None:
    gateway = fleet.gateway(max_held_body_bytes=1024)
    answer = send(gateway, CHAT, json.dumps(LARGE).encode())
    assert answer.status_code == 200, answer.text
    assert send(gateway, CHAT, gzip.compress(json.dumps(LARGE).encode()), "gzip").is_success


def test_a_picture_of_20_mb_is_no_large_body(fleet: Stack) -> None:
    gateway = fleet.gateway()
    url = "data:image/png;base64," + "A" * (20 * MB)
    content = [{"type": "image_url", "image_url": {"url": url}}]
    body = chat(max_tokens=2) | {"messages": [{"role": "user", "content": content}]}
    answer = send(gateway, "/jobs", json.dumps({"body": body}).encode())
    assert answer.status_code == 202, answer.text[:500]
    assert send(gateway, CHAT, b" " * (32 * MB + 1)).status_code == 413

"""Clients that end their side behind the request and read on, and clients of HTTP/1.0."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.harness.client import CHAT, chat, http, in_progress, job
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT
from tests.harness.strict_client import request
from tests.harness.waiting import wait_for

KEY = "key-of-ann-123456"
SLOTS = 2
Connect = Callable[..., socket.socket]


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=20, sim_step_us_per_seq=0, sim_max_num_seqs=SLOTS, **PATIENT)
    return module_stack.gateway(disconnect_grace_s=0, keepalive_s=0.2, **PATIENT)


@pytest.fixture
def connect(gateway: Process) -> Iterator[Connect]:
    """Opens connections, which are closed at the end."""
    with ExitStack() as open_ones:

        def connect(data: bytes, *, half_close: bool = False) -> socket.socket:
            address = ("127.0.0.1", int(gateway.url.rpartition(":")[2]))
            client = open_ones.enter_context(socket.create_connection(address, timeout=60))
            client.sendall(data)
            if half_close:
                client.shutdown(socket.SHUT_WR)
            return client

        yield connect


def call(tokens: int, version: str = "1.1", *headers: str, **fields: Any) -> bytes:
    body = chat(max_tokens=tokens, ignore_eos=True, **fields)
    sent = request("POST", CHAT, KEY, body, *headers)
    return sent.replace(b" HTTP/1.1\r\n", f" HTTP/{version}\r\n".encode(), 1)


def rest(client: socket.socket) -> bytes:
    """All data until the gateway ends the connection."""
    data = b""
    while more := client.recv(1 << 16):
        data += more
    return data


def parts(answer: bytes) -> tuple[list[bytes], bytes]:
    """The lines of the one head, and what is behind it."""
    assert answer.startswith(b"HTTP/1.1 200 OK\r\n"), answer[:200]
    assert answer.count(b"HTTP/1.1") == 1
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower().split(b"\r\n"), body


def unchunked(body: bytes) -> bytes:
    whole = b""
    while True:
        size, _, body = body.partition(b"\r\n")
        length = int(size, 16)
        if not length:
            assert body == b"\r\n"
            return whole
        whole, body = whole + body[:length], body[length + 2 :]


def tokens_in(stream: bytes) -> int:
    assert stream.endswith(b"data: [DONE]\n\n"), stream[-200:]
    events = [line[6:] for line in stream.splitlines() if line.startswith(b"data: {")]
    return sum(bool(json.loads(each)["choices"][0]["delta"].get("content")) for each in events)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("tokens", [1, 100])
def test_a_half_closed_client_gets_its_whole_answer(
    connect: Connect, version: str, tokens: int
) -> None:
    head, body = parts(rest(connect(call(tokens, version), half_close=True)))
    assert json.loads(body)["usage"]["completion_tokens"] == tokens
    assert b"content-length: %d" % len(body) in head


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("tokens", [1, 100])
def test_a_half_closed_client_gets_its_whole_stream(
    connect: Connect, version: str, tokens: int
) -> None:
    answer = rest(connect(call(tokens, version, stream=True), half_close=True))
    head, body = parts(answer)
    stream = body if version == "1.0" else unchunked(body)
    assert (b"transfer-encoding: chunked" in head) is (version == "1.1")
    assert tokens_in(stream) == tokens


def test_a_client_that_ends_its_side_within_the_stream_gets_the_rest(connect: Connect) -> None:
    client = connect(call(100, stream=True))
    begun = b""
    while b"data: " not in begun:
        begun += client.recv(1 << 16)
    client.shutdown(socket.SHUT_WR)
    assert tokens_in(unchunked(parts(begun + rest(client))[1])) == 100


def test_all_requests_of_a_half_closed_client_are_answered(connect: Connect) -> None:
    models = request("GET", "/v1/models", KEY)
    answer = rest(connect(call(50) + models + call(5, stream=True), half_close=True))
    assert answer.count(b"HTTP/1.1 200 OK\r\n") == 3
    assert answer.endswith(b"0\r\n\r\n")
    assert b"data: [DONE]" in answer


def test_half_a_request_is_not_answered(connect: Connect, gateway: Process) -> None:
    before = gateway.metric("flotilla_open_streams")
    for data in (call(5)[:-5], call(5)[:40]):
        assert rest(connect(data, half_close=True)) == b""
    assert gateway.metric("flotilla_open_streams") == before


def ended(gateway: Process, before: set[str], state: str) -> None:
    """The job that is not in `before` is cancelled once its client has left."""
    (job_id,) = set(ids(gateway)) - before
    wait_for(lambda: job(gateway, job_id)["state"] == state, f"it is {state}")


def ids(gateway: Process) -> list[str]:
    listed = http.get(f"{gateway.url}/jobs", params={"limit": 100}).json()
    return [each["id"] for each in listed["data"]]


@pytest.mark.parametrize("version", ["1.0", "1.1"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("half_close", [False, True])
def test_the_job_of_a_client_that_leaves_is_cancelled(
    connect: Connect, gateway: Process, version: str, stream: bool, waits: bool, half_close: bool
) -> None:
    """Also if it ends its side first, and while the job waits in the queue."""
    wait_for(lambda: in_progress(gateway, 0), "the worker is free")
    others = [connect(call(5000)) for _ in range(SLOTS * waits)]
    wait_for(lambda: in_progress(gateway, len(others)), "they run")
    before = set(ids(gateway))
    client = connect(call(5000, version, stream=stream), half_close=half_close)
    wait_for(lambda: len(ids(gateway)) > len(before), "its job is there")
    if stream and waits:
        client.recv(1)  # a comment
    client.close()
    ended(gateway, before, "cancelled")
    for each in others:
        each.close()
    wait_for(lambda: in_progress(gateway, 0), "the others are cancelled")


def test_http_1_0_is_answered_without_chunks_and_ended(connect: Connect) -> None:
    for header in ((), ("Connection: keep-alive",), ("Expect: 100-continue",)):
        for path in ("/v1/models", "/docs", "/metrics", "/"):
            sent = request("GET", path, KEY, None, *header).replace(b"HTTP/1.1", b"HTTP/1.0")
            head, body = parts(rest(connect(sent)))
            assert b"connection: close" in head
            assert b"content-length: %d" % len(body) in head
        head, body = parts(rest(connect(call(20, "1.0", *header, stream=True))))
        assert b"connection: close" in head
        assert not [line for line in head if line.startswith((b"content-l", b"transfer"))]
        assert tokens_in(body) == 20

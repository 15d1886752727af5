"""Limits for clients without a key, with a real gateway: bytes, time, connections."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

KEY = "sk-of-alice"
WITH_KEY = {"authorization": f"Bearer {KEY}"}
TIMEOUT_S = 1.0
HALF = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-half: "
CLOSED = "flotilla_connections_closed_total"
Connect = Callable[..., socket.socket]


@pytest.fixture
def gateway(stack: Stack) -> Process:
    return stack.gateway(
        api_keys=f"alice:{KEY}", header_timeout_s=TIMEOUT_S, max_waiting_connections=20
    )


@pytest.fixture
def connect(gateway: Process) -> Iterator[Connect]:
    """Opens connections to the gateway; they are closed at the end."""
    with ExitStack() as open_ones:

        def connect(*sent: bytes, to: Process = gateway) -> socket.socket:
            address = ("127.0.0.1", int(to.url.rpartition(":")[2]))
            client = open_ones.enter_context(socket.create_connection(address, timeout=20))
            for data in sent:
                client.sendall(data)
            return client

        yield connect


def rest(client: socket.socket) -> bytes:
    """All data until the gateway closes the connection."""
    data = b""
    try:
        while more := client.recv(1 << 16):
            data += more
    except ConnectionResetError:
        pass
    return data


def error_of(answer: bytes) -> tuple[int, str]:
    """Status and code of an answer that is an error in OpenAI's shape and ends its connection."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"\r\nconnection: close" in head, answer[:500]
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error["code"]


def is_open(client: socket.socket) -> bool:
    client.setblocking(False)
    try:
        return client.recv(1) != b""
    except BlockingIOError:
        return True
    except ConnectionResetError:
        return False


def memory_mb(gateway: Process) -> float:
    return gateway.metric("process_resident_memory_bytes") / 1e6


@pytest.fixture
def keyed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics need a key, too."""
    get = httpx.get

    def with_key(url: str, **more: Any) -> httpx.Response:
        return get(url, **{"headers": WITH_KEY, "timeout": 20, **more})

    monkeypatch.setattr(httpx, "get", with_key)


pytestmark = pytest.mark.usefixtures("keyed")


def test_headers_are_limited_in_bytes_and_number(gateway: Process, connect: Connect) -> None:
    before = memory_mb(gateway)
    for filler in (b"a" * (1 << 20), b"a\r\nx: " * (1 << 17)):
        for _ in range(5):
            client = connect(HALF)
            try:
                for _ in range(40):
                    client.sendall(filler)
            except (ConnectionResetError, BrokenPipeError):
                continue  # the gateway closed the connection while the client was sending
            assert error_of(rest(client)) == (431, "headers_too_large")
    assert error_of(rest(connect(HALF + b"a\r\n" + b"y: z\r\n" * 300 + b"\r\n")))[0] == 431
    assert error_of(rest(connect(b"GET /" + b"a" * 40_000 + b" HTTP/1.1\r\n")))[0] == 431
    # Of data that arrives with a body, only the head counts.
    body = b"b" * 60_000
    length = b"content-length: %d\r\n" % len(body)
    sent = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nx: %b\r\nconnection: close\r\n"
    whole = sent % (b"a" * 30_000) + length + b"\r\n" + body
    assert rest(connect(whole)).startswith(b"HTTP/1.1 401 ")
    assert memory_mb(gateway) - before < 10
    assert gateway.metric("flotilla_requests_refused_total", code="headers_too_large") > 3


def test_trailers_are_limited_and_not_used_as_headers(gateway: Process, connect: Connect) -> None:
    chunked = b"POST /jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    before = memory_mb(gateway)
    client = connect(chunked + b"\r\n0\r\n")
    try:
        for _ in range(100):
            client.sendall(b"x: " + b"a" * (1 << 20) + b"\r\n")
    except (ConnectionResetError, BrokenPipeError):
        pass
    else:
        assert rest(client).count(b"HTTP/1.1 ") == 1
    assert memory_mb(gateway) - before < 10
    trailer = f"authorization: Bearer {KEY}\r\n\r\n".encode()
    answer = rest(connect(chunked + b"connection: close\r\n\r\n0\r\n" + trailer))
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_connections_of_silent_clients_are_closed(gateway: Process, connect: Connect) -> None:
    wrong = b"POST /jobs HTTP/1.1\r\nauthorization: Bearer x\r\ncontent-length: 99\r\n\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n"
    request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    halves = [connect(HALF), connect(request, HALF)]
    silent = {
        "nothing": connect(),
        "blank lines": connect(b"\r\n\r\n"),
        "a part of the body of a refused request": connect(wrong, b"{"),
        "an upgrade by GET": connect(request[:-2] + upgrade + b"\r\n"),
        "an upgrade by POST": connect(wrong[:-2] + upgrade + b"\r\n", b"{" * 99),
    }
    late = [rest(client) for client in halves]
    assert error_of(late[0]) == (408, "headers_timeout")
    assert b" 408 " in late[1].partition(b"ok")[2] or b" 408 " in late[1]
    answers = {name: rest(client) for name, client in silent.items()}  # or a timeout of the socket
    assert answers["nothing"] == answers["blank lines"] == b""
    assert b" 401 " in answers["a part of the body of a refused request"]
    assert answers["an upgrade by GET"].startswith(b"HTTP/1.1 200 ")
    assert error_of(answers["an upgrade by POST"])[0] == 400
    assert gateway.metric(CLOSED, limit="time") >= 3
    assert gateway.metric("flotilla_requests_refused_total", code="headers_timeout") == 2


def test_invalid_requests_and_too_many_pipelined_ones_are_refused(
    gateway: Process, connect: Connect
) -> None:
    assert error_of(rest(connect(b"hello\r\n\r\n")))[0] == 400
    client = connect(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 5_000)
    assert rest(client).count(b"HTTP/1.1 ") < 2_000


def test_silent_connections_of_an_address_are_limited_and_authenticated_ones_are_not(
    stack: Stack, connect: Connect
) -> None:
    gateway = stack.gateway(
        api_keys=f"alice:{KEY}", header_timeout_s=60, max_waiting_connections=20
    )
    request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    tenants = [connect(to=gateway) for _ in range(30)]

    def served() -> None:
        for tenant in tenants:
            tenant.sendall(request)
            answer = b""
            while not answer.endswith(b"}"):
                answer += tenant.recv(1 << 16) or b"closed}"
            assert answer.startswith(b"HTTP/1.1 200 ")

    def closed() -> bool:
        served()
        return gateway.metric(CLOSED, limit="address") >= 20

    served()
    silent = [connect(*sent, to=gateway) for sent in [(), (HALF,)] * 20]
    wait_for(closed, "the oldest are closed")
    assert not any(map(is_open, silent[:20]))
    assert all(map(is_open, silent[20:]))
    assert "127.0.0.1 has 40 silent connections" in gateway.log.read_text()
    served()


@pytest.mark.parametrize("api_keys", [f"alice:{KEY}", ""])
def test_a_connection_between_two_requests_has_a_time_of_its_own(
    stack: Stack, connect: Connect, api_keys: str
) -> None:
    """Not that of silent ones: who comes back later must not meet a connection that is closing."""
    key = f"authorization: Bearer {KEY}\r\n" if api_keys else ""
    request = f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}\r\n".encode()
    patient = stack.gateway(api_keys=api_keys, header_timeout_s=0.5, idle_connection_s=600)
    client, silent = connect(request, to=patient), connect(to=patient)
    assert b" 200 OK" in client.recv(1 << 16)
    assert rest(silent) == b""  # it is closed
    assert is_open(client)
    hasty = stack.gateway(api_keys=api_keys, header_timeout_s=60, idle_connection_s=1)
    assert b" 200 OK" in rest(connect(request, to=hasty))  # and then it is closed


def test_at_the_limit_of_descriptors_silent_connections_are_closed_first(
    stack: Stack, connect: Connect
) -> None:
    stack.launcher = ("sh", "-c", 'ulimit -n 256 && exec "$@"', "limited")
    small = stack.gateway(api_keys=f"alice:{KEY}", header_timeout_s=60)
    limit = int(small.metric("flotilla_connections_limit"))
    assert 100 < limit < 256
    half_open = [connect(HALF, to=small) for _ in range(300)]
    for _ in range(20):
        assert httpx.get(f"{small.url}/healthz").status_code == 200
        assert httpx.get(f"{small.url}/readyz").status_code == 200  # writes to Redis
    assert small.metric("flotilla_connections") <= limit
    assert small.metric(CLOSED, limit="descriptors") >= 300 - limit
    assert not is_open(half_open[0])
    assert is_open(half_open[-1])
    text = small.log.read_text()
    assert 1 <= text.count("file descriptors") <= 3


def test_wrong_keys_are_slowed_down_and_a_valid_one_is_not(stack: Stack) -> None:
    gateway = stack.gateway(api_keys=f"alice:{KEY}", wrong_keys_per_minute=3)
    url = f"{gateway.url}/v1/models"
    with httpx.Client(headers={"authorization": "Bearer sk-guessed"}, timeout=20) as client:
        assert [client.get(url).status_code for _ in range(3)] == [401] * 3
        began = time.monotonic()
        assert client.get(url).status_code == 401
        assert time.monotonic() - began > 0.9
        assert client.post(f"{gateway.url}/v1/completions", json={}).status_code == 401
        assert time.monotonic() - began > 1.8
    assert httpx.get(url).status_code == 200
    assert gateway.metric("flotilla_wrong_keys_total", answer="at_once") == 3
    assert gateway.metric("flotilla_wrong_keys_total", answer="delayed") == 2
    text = gateway.log.read_text()
    assert "4 wrong API keys from 127.0.0.1" in text
    assert "guessed" not in text


def test_answers_that_are_open_after_the_grace_time_end_with_an_error(stack: Stack) -> None:
    gateway = stack.gateway(grace_s=1)
    worker = stack.worker(sim_step_ms=200, sim_max_num_seqs=1)
    body = {"model": "simulated", "prompt": "hello", "max_tokens": 1000, "ignore_eos": True}
    with httpx.stream(
        "POST", f"{gateway.url}/v1/completions", json={**body, "stream": True}, timeout=30
    ) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        gateway.terminate()
        last = list(lines)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "gateway_stopped"
    assert gateway.popen.wait(20) is not None
    # The job is cancelled, which frees the worker's only slot.
    wait_for(lambda: worker.metric("flotilla_worker_slots", use="free") == 1, "it is cancelled")

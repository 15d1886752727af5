"""Limits for clients without a key, with a real gateway: bytes, time, connections."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import patience
from tests.harness.keys import bearer
from tests.harness.process_state import anonymous_bytes
from tests.harness.processes import metric
from tests.harness.waiting import wait_for

KEY = "sk-of-alice"
WITH_KEY = bearer(KEY)
MB = 1 << 20
HALF = b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-half: "
CLOSED = "flotilla_connections_closed_total"
Connect = Callable[..., socket.socket]


@pytest.fixture(scope="module")
def stack(module_stack: Stack) -> Stack:
    return module_stack


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Process:
    return stack.gateway(api_keys=f"alice:{KEY}", **patience())


@pytest.fixture
def connect(gateway: Process) -> Iterator[Connect]:
    """Opens connections to a gateway; they are closed at the end."""
    with ExitStack() as open_ones:

        def connect(*sent: bytes, to: Process = gateway) -> socket.socket:
            address = ("127.0.0.1", int(to.url.rpartition(":")[2]))
            client = open_ones.enter_context(socket.create_connection(address, timeout=60))
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


def test_headers_are_limited_in_bytes_and_number(gateway: Process, connect: Connect) -> None:
    before, offered = anonymous_bytes(gateway), 0
    for filler in (b"a" * MB, b"a\r\nx: " * (MB // 8)):
        for _ in range(5):
            client = connect(HALF)
            offered += 40 * len(filler)
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
    assert anonymous_bytes(gateway) - before < offered / 10
    assert (
        metric(gateway.url, "flotilla_requests_refused_total", WITH_KEY, code="headers_too_large")
        > 3
    )


def test_trailers_are_limited_and_not_used_as_headers(gateway: Process, connect: Connect) -> None:
    chunked = b"POST /jobs HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
    before, offered = anonymous_bytes(gateway), 200 * MB
    client = connect(chunked + b"\r\n0\r\n")
    try:
        for _ in range(200):
            client.sendall(b"x: " + b"a" * MB + b"\r\n")
    except (ConnectionResetError, BrokenPipeError):
        pass
    else:
        assert rest(client).count(b"HTTP/1.1 ") == 1
    assert anonymous_bytes(gateway) - before < offered / 10
    trailer = f"authorization: Bearer {KEY}\r\n\r\n".encode()
    answer = rest(connect(chunked + b"connection: close\r\n\r\n0\r\n" + trailer))
    assert answer.startswith(b"HTTP/1.1 401 ")


def test_connections_of_silent_clients_are_closed(stack: Stack, connect: Connect) -> None:
    hasty = stack.gateway(api_keys=f"alice:{KEY}", **patience(header_s=2))
    wrong = b"POST /jobs HTTP/1.1\r\nauthorization: Bearer x\r\ncontent-length: 99\r\n\r\n"
    upgrade = b"connection: upgrade\r\nupgrade: websocket\r\n"
    request = b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n"
    halves = [connect(HALF, to=hasty), connect(request, HALF, to=hasty)]
    silent = {
        "nothing": connect(to=hasty),
        "blank lines": connect(b"\r\n\r\n", to=hasty),
        "a part of the body of a refused request": connect(wrong, b"{", to=hasty),
        "an upgrade by GET": connect(request[:-2] + upgrade + b"\r\n", to=hasty),
        "an upgrade by POST": connect(wrong[:-2] + upgrade + b"\r\n", b"{" * 99, to=hasty),
    }
    late = [rest(client) for client in halves]
    assert error_of(late[0]) == (408, "headers_timeout")
    assert b" 408 " in late[1].partition(b"ok")[2] or b" 408 " in late[1]
    answers = {name: rest(client) for name, client in silent.items()}  # or a timeout of the socket
    assert answers["nothing"] == answers["blank lines"] == b""
    assert b" 401 " in answers["a part of the body of a refused request"]
    assert answers["an upgrade by GET"].startswith(b"HTTP/1.1 200 ")
    assert answers["an upgrade by POST"].startswith(b"HTTP/1.1 401 ")
    assert metric(hasty.url, CLOSED, WITH_KEY, limit="time") >= 3
    assert (
        metric(hasty.url, "flotilla_requests_refused_total", WITH_KEY, code="headers_timeout") == 2
    )


def one_answer(client: socket.socket) -> bytes:
    """The next answer on a connection that stays: an empty list of models."""
    answer = b""
    while not answer.endswith(b'"data":[]}'):
        part = client.recv(1 << 16)
        assert part, answer
        answer += part
    return answer


def test_at_the_limit_of_descriptors_connections_are_refused_for_a_time(
    stack: Stack, connect: Connect, tmp_path: Path
) -> None:
    launcher = ("sh", "-c", 'ulimit -n 256 && exec "$@"', "limited")
    limited = Stack(stack.redis_url, tmp_path, launcher)
    limited.processes = stack.processes  # they end with those
    small = limited.gateway(api_keys=f"alice:{KEY}", **patience(header_s=3))
    request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEY}\r\n\r\n".encode()
    tenant = connect(request, to=small)
    assert b" 200 OK" in one_answer(tenant)
    silent = [connect(to=small) for _ in range(300)]
    answers = [rest(client) for client in silent]
    refused = [error_of(answer) for answer in answers if answer]
    assert 0 < len(refused) < 300
    assert set(refused) == {(503, "too_many_connections")}
    tenant.sendall(request)
    assert b" 200 OK" in one_answer(tenant)
    wait_for(lambda: http.get(f"{small.url}/readyz").status_code == 200, "it writes to Redis")


def test_invalid_requests_and_too_many_pipelined_ones_are_refused(
    gateway: Process, connect: Connect
) -> None:
    assert error_of(rest(connect(b"hello\r\n\r\n")))[0] == 400
    client = connect(b"GET /healthz HTTP/1.1\r\nhost: x\r\n\r\n" * 5_000)
    assert rest(client).count(b"HTTP/1.1 ") < 2_000


@pytest.mark.parametrize("api_keys", [f"alice:{KEY}", ""])
def test_a_connection_between_two_requests_has_a_time_of_its_own(
    stack: Stack, connect: Connect, api_keys: str
) -> None:
    """Not that of silent ones: who comes back later must not meet a connection that is closing."""
    key = f"authorization: Bearer {KEY}\r\n" if api_keys else ""
    request = f"GET /v1/models HTTP/1.1\r\nhost: 127.0.0.1\r\n{key}\r\n".encode()
    patient = stack.gateway(api_keys=api_keys, idle_connection_s=600, **patience(header_s=2))
    client, silent = connect(request, to=patient), connect(to=patient)
    assert b" 200 OK" in one_answer(client)
    assert rest(silent) == b""  # it is closed
    assert is_open(client)
    hasty = stack.gateway(api_keys=api_keys, idle_connection_s=1, **patience())
    assert b" 200 OK" in rest(connect(request, to=hasty))  # and then it is closed


def test_answers_that_are_open_after_the_grace_time_end_with_an_error(stack: Stack) -> None:
    gateway = stack.gateway(grace_s=1)
    worker = stack.worker(sim_step_ms=200, sim_max_num_seqs=1)
    body = {"model": "simulated", "prompt": "hello", "max_tokens": 1000, "ignore_eos": True}
    with http.stream(
        "POST", f"{gateway.url}/v1/completions", json={**body, "stream": True}, timeout=60
    ) as answer:
        lines = (line for line in answer.iter_lines() if line.startswith("data: "))
        next(lines)
        gateway.terminate()
        last = list(lines)[-1]
    assert json.loads(last.removeprefix("data: "))["error"]["code"] == "gateway_stopped"
    assert gateway.popen.wait(60) is not None
    # The job is cancelled, which frees the worker's only slot.
    wait_for(lambda: worker.metric("flotilla_worker_slots", use="free") == 1, "it is cancelled")

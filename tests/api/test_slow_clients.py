"""Clients that read slowly or nothing at all, and clients whose machine disappears."""

from __future__ import annotations

import ctypes
import re
import signal
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import CHAT, chat, http, in_progress, job
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import patience
from tests.harness.process_state import anonymous_bytes
from tests.harness.strict_client import request
from tests.harness.waiting import wait_for

KEY = "key-of-ann-123456"
READERS, TOKENS = 4, 1500
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction: none of the packet is let through."""
FAST, SLOW = "fast", "slow"
"""Names of models: a token each 5 ms, or each 100 ms."""
Connect = Callable[..., socket.socket]


def endless(model: str, tokens: int = 8000, **fields: Any) -> dict[str, Any]:
    return chat(**{"stream": True, "ignore_eos": True, "max_tokens": tokens, **fields}, model=model)


def large(tokens: int, *headers: str) -> bytes:
    """A request for an answer of 3 KB for each token."""
    body = endless(FAST, tokens, logprobs=True, top_logprobs=20, n=2)
    return request("POST", CHAT, KEY, body, *headers)


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Stack:
    """Workers of both models. Each test has gateways of its own."""
    for model, step_ms in ((FAST, 5), (SLOW, 100)):
        module_stack.worker(sim_step_ms=step_ms, sim_step_us_per_seq=0, served_model_name=model)
    return module_stack


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Opens connections with a small receive buffer; they are closed at the end."""
    with ExitStack() as open_ones:

        def connect(to: Process, data: bytes, receive_bytes: int = 4096) -> socket.socket:
            client = open_ones.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            client.settimeout(60)
            client.connect(("127.0.0.1", int(to.url.rpartition(":")[2])))
            client.sendall(data)
            return client

        yield connect


# --- readers that never read ---


def job_of(client: socket.socket) -> str:
    """The id of the job of this client, which reads the head of the answer and nothing more."""
    head = b""
    while b"\r\n\r\n" not in head:
        more = client.recv(256)
        assert more, "the gateway has closed the connection"
        head += more
    found = re.search(rb"x-flotilla-job-id: (\S+)", head)
    assert found
    return found[1].decode()


def answer_of(gateway: Process, job_id: str) -> bytes:
    """What the job has answered, once it is complete."""
    # A gateway that starves answers 503 for a while.
    wait_for(lambda: job(gateway, job_id).get("finished_at"), "it has ended", 180)
    assert job(gateway, job_id)["usage"]["completion_tokens"] == 2 * TOKENS
    return http.get(f"{gateway.url}/jobs/{job_id}/result", timeout=60).content


def test_readers_that_never_read_disturb_nobody(fleet: Stack, connect: Connect) -> None:
    gateway = fleet.gateway(**patience(write_s=600))
    silent = [connect(gateway, large(TOKENS)) for _ in range(READERS)]
    jobs = [job_of(client) for client in silent]
    runs = True
    while runs:
        answer = http.post(gateway.url + CHAT, json=endless(FAST, 50), timeout=60)
        assert answer.content.endswith(b"data: [DONE]\n\n")
        runs = not all(job(gateway, job_id).get("finished_at") for job_id in jobs)
    for job_id in jobs:
        assert answer_of(gateway, job_id).endswith(b"data: [DONE]\n\n")


def test_a_reader_that_never_reads_costs_a_part_of_its_answer_however_slow_the_gateway_is(
    fleet: Stack, connect: Connect
) -> None:
    gateway = fleet.gateway(**patience(write_s=600))
    other = fleet.gateway()
    http.post(gateway.url + CHAT, json=endless(FAST, 200), timeout=60).raise_for_status()
    before = anonymous_bytes(gateway)
    request_kept = large(TOKENS, "x-flotilla-on-disconnect: keep")
    silent = [connect(gateway, request_kept) for _ in range(READERS)]
    jobs = [job_of(client) for client in silent]
    # A gateway that gets no share of the CPU, while all the answers come.
    gateway.stop(signal.SIGSTOP)
    try:
        generated = sum(len(answer_of(other, job_id)) for job_id in jobs)
    finally:
        gateway.stop(signal.SIGCONT)
    behind = connect(gateway, request("POST", CHAT, KEY, endless(FAST, 50)), 1 << 16)
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):  # by its end the gateway has caught up
        more = behind.recv(1 << 16)
        assert more, "the gateway has closed the connection"
        data += more
    assert len(silent) == READERS

    def is_small() -> bool:
        return anonymous_bytes(gateway) - before <= generated / 20

    # A part of the log is 32 KB, and some more while it is decoded and sent.
    wait_for(is_small, "the gateway holds a small part of the answers", 30)


def test_a_reader_that_never_reads_is_disconnected_and_its_job_cancelled(
    fleet: Stack, connect: Connect
) -> None:
    gateway = fleet.gateway(disconnect_grace_s=0.2, **patience(write_s=2))
    silent = connect(gateway, large(8000))
    job_id = job_of(silent)
    wait_for(lambda: gateway.metric("flotilla_connections") <= 2, "the connection is closed")
    assert_cancelled(gateway, job_id)
    silent.close()


def assert_cancelled(gateway: Process, job_id: str) -> None:
    """The gateway has noticed that the client is gone."""
    wait_for(lambda: job(gateway, job_id).get("finished_at"), "the job has ended")
    assert job(gateway, job_id)["state"] == "cancelled"
    assert gateway.metric("flotilla_disconnects_total") == 1


def test_a_slow_reader_is_served_to_the_end(fleet: Stack, connect: Connect) -> None:
    timeout_s = 10
    gateway = fleet.gateway(**patience(write_s=timeout_s))
    client = connect(gateway, large(800))
    data, began = b"", time.monotonic()
    while not data.endswith(b"\r\n0\r\n\r\n"):
        time.sleep(0.06)
        more = client.recv(32_000)
        assert more, "the gateway has closed the connection"
        data += more
    assert b"data: [DONE]\n\n" in data
    assert time.monotonic() - began > timeout_s, "it was not slow"


# --- what is stored ---

SILENT, STORED_BYTES = 30, 6 << 20


def put_request(gateway: Process) -> str:
    body = {"body": chat("x" * STORED_BYTES, model=FAST, max_tokens=1)}
    answer = http.post(gateway.url + "/jobs", json=body)
    return f"/jobs/{answer.json()['id']}/request"


def put_item(gateway: Process) -> str:
    items = [{"role": "user", "content": "x" * STORED_BYTES}]
    answer = http.post(gateway.url + "/v1/conversations", json={"items": items})
    return f"/v1/conversations/{answer.json()['id']}/items"


def put_single_item(gateway: Process) -> str:
    page = put_item(gateway)
    return f"{page}/{http.get(gateway.url + page).json()['first_id']}"


def put_input(gateway: Process) -> str:
    body = {"model": FAST, "input": "x" * STORED_BYTES, "background": True}
    answer = http.post(gateway.url + "/v1/responses", json=body)
    return f"/v1/responses/{answer.json()['id']}/input_items"


def put_file(gateway: Process) -> str:
    form = {"file": ("x", b"x" * STORED_BYTES)}
    answer = http.post(gateway.url + "/v1/files", files=form, data={"purpose": "user_data"})
    return f"/v1/files/{answer.json()['id']}/content"


@pytest.mark.parametrize("put", [put_request, put_item, put_single_item, put_input, put_file])
def test_what_is_stored_is_not_held_for_clients_that_never_read(
    fleet: Stack, connect: Connect, tmp_path: Path, put: Callable[[Process], str]
) -> None:
    gateway = fleet.gateway(storage_url=str(tmp_path), **patience(write_s=600))
    path = put(gateway)
    whole = http.get(gateway.url + path).content
    before = anonymous_bytes(gateway)
    silent = [connect(gateway, request("GET", path, KEY, None)) for _ in range(SILENT)]
    wait_for(lambda: gateway.metric("flotilla_connections") >= SILENT, "all are there")
    small = http.post(gateway.url + "/v1/conversations", json={"items": chat()["messages"]}).json()
    assert http.get(f"{gateway.url}/v1/conversations/{small['id']}/items").is_success
    answer = http.post(gateway.url + CHAT, json=endless(FAST, 50), timeout=60)
    assert answer.content.endswith(b"data: [DONE]\n\n")
    assert anonymous_bytes(gateway) - before < SILENT * STORED_BYTES / 2
    # One that waits for its turn gets all of it when the others have left.
    last = silent.pop()
    for client in silent:
        client.close()
    data = b""
    while len(data) < len(whole):
        more = last.recv(1 << 20)
        assert more, "the gateway has closed the connection"
        data += more
    assert whole.startswith(data.partition(b"\r\n\r\n")[2])


# --- half-open connections ---


def vanish(client: socket.socket) -> None:
    """From now on the connection's packets are dropped, as if the machine was gone."""
    program = (DROP_ALL, len(DROP_ALL) // 8)
    buffer = ctypes.create_string_buffer(program[0])
    address = ctypes.addressof(buffer)
    fprog = struct.pack("HxxxxxxP", program[1], address)
    client.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, fprog)


@pytest.mark.parametrize("streams", [True, False])
def test_a_client_whose_machine_is_gone_is_noticed(
    fleet: Stack, connect: Connect, streams: bool
) -> None:
    gateway = fleet.gateway(disconnect_grace_s=0.2, **patience(write_s=3))
    body = endless(SLOW, stream=streams)
    client = connect(gateway, request("POST", CHAT, KEY, body), 1 << 16)
    wait_for(lambda: in_progress(gateway, 1), "it runs")
    running = http.get(f"{gateway.url}/jobs", params={"state": "in_progress"}).json()["data"]
    vanish(client)
    assert_cancelled(gateway, running[0]["id"])
    client.close()

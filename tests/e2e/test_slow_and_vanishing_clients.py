"""Clients that read nothing, that disappear, or that all reset their connections at once."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import resource
import socket
import struct
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.strict_client import StrictClient, request
from tests.harness.waiting import eventually, wait_for

RESETS, WARM_UP, BATCH = 2000, 500, 250
KEY = "key-of-ann-123456"
READERS, TOKENS = 8, 1500
BUFFER_BYTES, MOST_MB = 65_536, 1.5
SO_ATTACH_FILTER = 26
DROP_ALL = struct.pack("HBBI", 0x06, 0, 0, 0)
"""A packet filter of one instruction: none of the packet is let through."""


def chat(tokens: int, **fields: Any) -> dict[str, Any]:
    return {
        "model": "simulated",
        "messages": [{"role": "user", "content": "hello"}],
        "stream": True,
        "max_tokens": tokens,
        "ignore_eos": True,
        **fields,
    }


def running(gateway: Process) -> int:
    """How many jobs run; at most 100 are counted. -1: the queue is too busy to answer."""
    query = "/jobs?state=in_progress&limit=100"
    answer = httpx.get(gateway.url + query, timeout=30)
    if answer.status_code == 503:
        return -1
    assert answer.status_code == 200, answer.text
    return len(answer.json()["data"])


def memory_mb(gateway: Process) -> float:
    for line in Path(f"/proc/{gateway.popen.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1000
    raise AssertionError("no VmRSS")


def descriptors(gateway: Process) -> int:
    return len(list(Path(f"/proc/{gateway.popen.pid}/fd").iterdir()))


# --- all at once ---


async def wave(url: str, n_clients: int) -> None:
    """Streams whose clients all reset their connections at the same time, in the middle."""

    async def begin() -> None:
        client = await StrictClient.connect(url)
        client.send(request("POST", "/v1/chat/completions", KEY, chat(8000)))
        status, headers = await client.head()
        assert status == 200
        await client.chunk(headers[b"x-flotilla-job-id"])

    try:
        for _ in range(0, n_clients, BATCH):
            async with asyncio.TaskGroup() as batch:  # it leaves none behind that still connects
                for _ in range(BATCH):
                    batch.create_task(begin())
    finally:
        StrictClient.reset_all()


@pytest.mark.parametrize("end", ["refused", "cancelled"])
async def test_a_wave_that_breaks_leaves_no_connection(end: str) -> None:
    """Else the garbage collector warns of thousands, as errors of any later test."""
    with socket.create_server(("127.0.0.1", 0), backlog=2 * BATCH) as silent:
        broken = asyncio.create_task(wave(f"http://127.0.0.1:{silent.getsockname()[1]}", BATCH))

        async def connected() -> bool:
            return len(StrictClient.opened) == BATCH

        await eventually(connected, "all clients wait for an answer")
        if end == "cancelled":
            broken.cancel()
        else:
            silent.close()  # resets the connections
        with pytest.raises((asyncio.CancelledError, ExceptionGroup)):
            await broken
    del broken
    assert StrictClient.opened == set()
    with warnings.catch_warnings(record=True) as unclosed:
        warnings.simplefilter("always")
        gc.collect()
    assert unclosed == []


async def test_2000_connections_reset_at_once(stack: Stack) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < RESETS + 200:
        pytest.skip(f"only {hard} file descriptors are allowed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, RESETS + 200), hard))
    # The worker is busy for more than 1.5 s, which is not what is tested here.
    gateway = stack.gateway(disconnect_grace_s=0.5, silence_s=60)
    for _ in range(4):  # Redis does more for each job of a worker that has more of them
        stack.worker(
            sim_step_ms=1000, sim_step_us_per_seq=0, sim_max_num_seqs=750, sim_kv_tokens=1 << 23
        )
    await wave(gateway.url, WARM_UP)
    await asyncio.to_thread(nothing_is_left, gateway)
    memory, files = memory_mb(gateway), descriptors(gateway)
    await wave(gateway.url, RESETS)
    began = time.monotonic()
    await asyncio.to_thread(nothing_is_left, gateway)
    print(f"{RESETS} resets: all cancelled after {time.monotonic() - began:.1f} s")
    assert descriptors(gateway) <= files + 10, "connections to Redis may be added"
    grown = memory_mb(gateway) - memory
    assert grown < 60, f"{grown:.0f} MB more after {RESETS} streams; one of them has about 20 KB"
    assert "Traceback" not in gateway.log.read_text()


def nothing_is_left(gateway: Process) -> None:
    """All connections but our own are closed, and no job runs."""
    wait_for(lambda: gateway.metric("flotilla_connections") <= 2, "connections are closed", 30)
    wait_for(lambda: not running(gateway), "jobs are cancelled", 120)


# --- readers that never read ---


@pytest.fixture
def connect() -> Iterator[Any]:
    """Opens connections with a small receive buffer; they are closed at the end."""
    with ExitStack() as open_ones:

        def connect(to: Process, data: bytes, receive_bytes: int = 4096) -> socket.socket:
            client = open_ones.enter_context(socket.socket())
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            client.settimeout(20)
            client.connect(("127.0.0.1", int(to.url.rpartition(":")[2])))
            client.sendall(data)
            return client

        yield connect


def large(tokens: int = 8000) -> bytes:
    """A request for an answer of many megabytes."""
    body = chat(tokens, logprobs=True, top_logprobs=20, n=2)
    return request("POST", "/v1/chat/completions", KEY, body)


def test_readers_that_never_read_cost_bounded_memory_and_disturb_nobody(
    stack: Stack, connect: Any
) -> None:
    gateway = stack.gateway(stream_buffer_bytes=BUFFER_BYTES, write_timeout_s=600)
    stack.worker(sim_step_ms=5, sim_step_us_per_seq=0)

    def read(tokens: int) -> bytes:
        answer = httpx.post(gateway.url + "/v1/chat/completions", json=chat(tokens), timeout=60)
        assert answer.content.endswith(b"data: [DONE]\n\n")
        return answer.content

    assert len(read(200)) > 200
    before = memory_mb(gateway)
    silent = [connect(gateway, large(TOKENS)) for _ in range(READERS)]
    wait_for(lambda: running(gateway) == READERS, "they run")
    highest = before
    while running(gateway):
        assert len(read(50)) > 50
        highest = max(highest, memory_mb(gateway))
    grown = (highest - before) / READERS
    print(f"{grown:.2f} MB for each reader that never reads")
    assert len(silent) == READERS
    jobs = httpx.get(gateway.url + "/jobs?state=completed&limit=100", timeout=30).json()["data"]
    assert max(job["usage"]["completion_tokens"] for job in jobs) == 2 * TOKENS
    results = (httpx.get(f"{gateway.url}/jobs/{job['id']}/result", timeout=60) for job in jobs)
    largest_mb = max(len(result.content) for result in results) / 1e6
    print(f"of answers of {largest_mb:.1f} MB")
    assert grown < MOST_MB, f"{grown:.1f} MB each, with buffers of {BUFFER_BYTES} bytes"
    assert largest_mb > 3 * MOST_MB, "smaller answers would fit into the buffers of sockets"


def test_a_reader_that_never_reads_is_disconnected_and_its_job_cancelled(
    stack: Stack, connect: Any
) -> None:
    gateway = stack.gateway(write_timeout_s=2, disconnect_grace_s=0.2, stream_buffer_bytes=65_536)
    stack.worker(sim_step_ms=5, sim_step_us_per_seq=0)
    silent = connect(gateway, large())
    wait_for(lambda: running(gateway) == 1, "it runs")
    wait_for(lambda: gateway.metric("flotilla_connections") <= 2, "the connection is closed")
    wait_for(lambda: not running(gateway), "the job is cancelled")
    assert gateway.metric("flotilla_disconnects_total") == 1
    silent.close()


def test_a_slow_reader_is_served_to_the_end(stack: Stack, connect: Any) -> None:
    gateway = stack.gateway(write_timeout_s=1, stream_buffer_bytes=65_536)
    stack.worker(sim_step_ms=1, sim_step_us_per_seq=0)
    client = connect(gateway, large(500))
    data = b""
    while not data.endswith(b"\r\n0\r\n\r\n"):
        time.sleep(0.02)  # the answer takes about five seconds
        more = client.recv(32_000)
        assert more, "the gateway has closed the connection"
        data += more
    assert b"data: [DONE]\n\n" in data


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
    stack: Stack, connect: Any, streams: bool
) -> None:
    gateway = stack.gateway(write_timeout_s=3, disconnect_grace_s=0.2)
    stack.worker(sim_step_ms=100)
    body = chat(8000, stream=streams)
    client = connect(gateway, request("POST", "/v1/chat/completions", KEY, body), 1 << 16)
    wait_for(lambda: running(gateway) == 1, "it runs")
    vanish(client)
    wait_for(lambda: not running(gateway), "the job is cancelled", 30)
    assert gateway.metric("flotilla_disconnects_total") == 1
    client.close()

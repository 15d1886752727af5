"""Every way in which a connection can end under a stream: no other client gets its bytes.

The kernel reuses file descriptors at once, so other tenants connect, and Redis connections are
opened, just when a connection ends. Every byte that any client gets is checked. `FAULT_ROUNDS=300`
makes a long run of it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from tests.harness.client import CHAT
from tests.harness.client import chat as chat_body
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT
from tests.harness.keys import bearer
from tests.harness.process_state import local_ports
from tests.harness.processes import metric
from tests.harness.servers import RedisServer
from tests.harness.strict_client import CHUNK_ID, ProtocolViolation, StrictClient, request
from tests.harness.waiting import eventually, wait_for

ROUNDS = int(os.environ.get("FAULT_ROUNDS", "1"))
LEAVING = 4
"""Connections that end in one round."""
STEP_S = 0.012
"""The engine's."""
OTHERS = 6
"""Connections of other tenants that are opened then."""
KEYS = {"ann": "key-of-ann-123456", "bob": "key-of-bob-123456", "cec": "key-of-cec-123456"}
ANN = KEYS["ann"]
UPGRADE = (
    "Connection: Upgrade",
    "Upgrade: websocket",
    "Sec-WebSocket-Version: 13",
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
)


def chat(text: str, tokens: int) -> dict[str, Any]:
    return chat_body(text, stream=True, max_tokens=tokens, ignore_eos=True)


HEALTH = request("GET", "/healthz", ANN)
STREAM = request("POST", CHAT, ANN, chat("pipelined", 8000))
UPGRADING = request("GET", "/v1/models", ANN, None, *UPGRADE)
HALF_A_BODY = request("POST", CHAT, ANN, chat("pipelined", 10), pad=300_000)[:-100_000]

BEHIND = {
    "nothing": b"",
    "a_request": HEALTH,
    "many_requests": HEALTH * 12,
    "a_stream": STREAM,
    "streams_and_requests": (STREAM + HEALTH) * 3,
    "half_a_head": HEALTH[:-9],
    "half_a_body": HALF_A_BODY,
    "an_upgrade": UPGRADING,
    "requests_and_an_upgrade": HEALTH + UPGRADING,
    "an_upgrade_by_post": request("POST", CHAT, ANN, chat("up", 8000), *UPGRADE) + HEALTH,
    "no_http": b"\x00\xffno http\r\n\r\n",
    "a_request_and_no_http": HEALTH + b"\x00\xffno http\r\n\r\n",
}
"""What a client sends behind the request for a stream, while that runs."""
ENDS: dict[str, Callable[[StrictClient], None]] = {
    "close": StrictClient.close,
    "reset": StrictClient.reset,
    "half_close": StrictClient.half_close,
}
WAYS = [
    (behind, end)
    for behind in BEHIND
    for end in ENDS
    if ROUNDS > 3 or end == "close" or behind in {"nothing", "a_request", "an_upgrade"}
]


@pytest.fixture(scope="module")
def stack(module_stack: Stack) -> Stack:
    module_stack.worker(sim_step_ms=STEP_S * 1000, sim_step_us_per_seq=0, **PATIENT)
    return module_stack


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Process:
    return start(stack)


def start(stack: Stack, **changes: Any) -> Process:
    keys = ",".join(f"{name}:{key}" for name, key in KEYS.items())
    gateway = stack.gateway(api_keys=keys, **PATIENT, **changes)
    wait_for(
        lambda: metric(gateway.url, "flotilla_open_streams", bearer(ANN)) == 0, "it counts streams"
    )
    return gateway


@pytest.fixture(autouse=True)
async def connections_end() -> AsyncIterator[None]:
    """Before the test's event loop, also those of a test that has failed."""
    yield
    StrictClient.reset_all()


@pytest.fixture(autouse=True)
def nothing_is_logged(gateway: Process) -> Iterator[None]:
    """No error and no exception, but uvicorn's line for a request that is not HTTP."""
    before = len(gateway.log.read_text())
    yield
    gateway.check()
    lines = gateway.log.read_text()[before:].splitlines()
    allowed = ("Invalid HTTP request received", '"level": "info"')
    assert [line for line in lines if not any(each in line for each in allowed)] == []


async def nothing_goes_on(gateway: Process) -> None:
    """The clients of all streams have left, and their jobs were cancelled long before their end."""
    client = await StrictClient.connect(gateway.url)

    async def idle() -> bool:
        listed = []
        for key in KEYS.values():
            for state in ("in_progress", "queued"):
                client.send(request("GET", f"/jobs?state={state}", key))
                listed += (await client.reply()).json()["data"]
        return not listed

    await eventually(idle, "all jobs have been cancelled")
    wait_for(
        lambda: metric(gateway.url, "flotilla_open_streams", bearer(ANN)) == 0, "no stream is open"
    )
    client.close()


async def streaming(gateway: Process, tokens: int = 8000) -> tuple[StrictClient, bytes]:
    """Ann's client in the middle of an answer, and the id of its job."""
    client = await StrictClient.connect(gateway.url)
    client.send(request("POST", CHAT, ANN, chat("ann's secret", tokens)))
    status, headers = await client.head()
    assert status == 200
    job_id = headers[b"x-flotilla-job-id"]
    for _ in range(3):
        await client.chunk(job_id)
    return client, job_id


async def another(gateway: Process, n: int) -> None:
    """Another tenant connects, sends a request sooner or later, gets its answer and no more."""
    key = (KEYS["bob"], KEYS["cec"])[n % 2]
    client = await StrictClient.connect(gateway.url)
    try:
        if n % 3 == 0:
            await client.expect_silence(0.02)
        if n % 3 == 2:
            client.send(request("GET", "/v1/models", key))
            answer = await client.reply()
            assert answer.status == 200, answer
            assert [model["id"] for model in answer.json()["data"]] == ["simulated"]
        else:
            client.send(request("POST", CHAT, key, chat("another's", 6)))
            answer = await client.reply()
            assert answer.status == 200, answer
            assert answer.body.endswith(b"data: [DONE]\n\n")
            job_id = answer.headers[b"x-flotilla-job-id"]
            assert answer.body.count(b'"id":"chatcmpl-' + job_id + b'"') >= 6
        await client.expect_silence(0.02)
    finally:
        client.close()


async def leave(gateway: Process, behind: bytes, end: Callable[[StrictClient], None]) -> None:
    """A connection that ends under a stream."""
    client, job_id = await streaming(gateway)
    try:
        client.send(behind)
        await asyncio.sleep(0.004)  # most often the gateway has read it: both orders are wanted
        end(client)
        if end is StrictClient.half_close:
            # The gateway need not see it behind many requests: it may go on with the stream.
            rest = await client.read_for(0.2)
            own_bytes(rest, job_id)
    finally:
        client.close()


def own_bytes(data: bytes, job_id: bytes) -> None:
    """A piece of a stream, then perhaps answers of their own to what came behind it."""
    stream, *_ = data.partition(b"HTTP/1.1 ")
    others = set(CHUNK_ID.findall(stream)) - {job_id}
    if others or b"secret" in data or b"another" in data:
        raise ProtocolViolation(f"{others} for {job_id!r}: {data[:300]!r}")


async def in_rounds(play: Callable[[int], Any]) -> None:
    broken = []
    for n in range(ROUNDS):
        try:
            await play(n)
        except (ProtocolViolation, AssertionError, ExceptionGroup) as error:
            broken.append(error)
    assert not broken, f"{len(broken)} of {ROUNDS} rounds, the last: {_message_of(broken[-1])}"


def _message_of(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return " | ".join(_message_of(each) for each in error.exceptions)
    return str(error)[:300]


@pytest.mark.parametrize(("behind", "end"), WAYS)
async def test_other_tenants_get_their_own_bytes_and_no_others(
    gateway: Process, behind: str, end: str
) -> None:
    await leave_beside_others(gateway, behind, end)


async def leave_beside_others(gateway: Process, behind: str, end: str) -> None:
    async def play(_: int) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(LEAVING):
                group.create_task(leave(gateway, BEHIND[behind], ENDS[end]))
            for n in range(OTHERS):
                group.create_task(another(gateway, n))
        async with asyncio.TaskGroup() as group:
            for n in range(OTHERS):
                group.create_task(another(gateway, n))

    await in_rounds(play)
    await nothing_goes_on(gateway)


# --- connections to Redis that are opened at that time ---


def pause(server: RedisServer) -> None:
    """Redis does not answer for a while."""
    with server.client() as redis:
        redis.client_pause(150)


def drop_connections(server: RedisServer, gateway: Process) -> None:
    """Those of the gateway that are not subscribed: whatever it does next opens new ones."""
    ports, dropped = local_ports(gateway), 0
    with server.client() as redis:
        for client in redis.client_list():
            if client["flags"] == "N" and int(client["addr"].rpartition(":")[2]) in ports:
                dropped += redis.client_kill_filter(_id=client["id"])
    assert dropped


@pytest.mark.parametrize("slow", [False, True])
@pytest.mark.parametrize("behind", ["nothing", "a_request", "many_requests", "an_upgrade"])
async def test_redis_connections_opened_at_that_time_carry_no_byte_of_it(
    gateway: Process, redis_server: RedisServer, behind: str, slow: bool
) -> None:
    readers = [await JobReader.open(gateway, name) for name in ("bob", "cec") * 6]

    async def play(n: int) -> None:
        drop_connections(redis_server, gateway)
        leaving = [await streaming(gateway) for _ in range(2 * LEAVING)]
        for client, _ in leaving:
            client.send(BEHIND[behind])
        await asyncio.sleep(0.01)
        for client, _ in leaving:
            client.close()
        # Of what comes now the first token is sent in vain, the second one fails and ends the
        # connection, the third one must go nowhere: Redis is slow between those two.
        await asyncio.sleep((1.5 + n % 4 * 0.4) * STEP_S)
        if slow:
            pause(redis_server)
        async with asyncio.TaskGroup() as group:
            for reader in readers:
                group.create_task(reader.read())

    try:
        await in_rounds(play)
    finally:
        for reader in readers:
            reader.client.close()
    await nothing_goes_on(gateway)


class JobReader:
    """A tenant that reads a job of its own."""

    def __init__(self, client: StrictClient, name: str, job_id: str) -> None:
        self.client = client
        self._name = name
        self._job_id = job_id

    @classmethod
    async def open(cls, gateway: Process, name: str) -> JobReader:
        client = await StrictClient.connect(gateway.url)
        body = {**chat(f"of {name}", 5), "stream": False}
        job = {"endpoint": CHAT, "body": body, "metadata": {"of": name}}
        client.send(request("POST", "/jobs", KEYS[name], job))
        reply = await client.reply()
        assert reply.status == 202, reply
        return cls(client, name, reply.json()["id"])

    async def read(self) -> None:
        self.client.send(request("GET", f"/jobs/{self._job_id}", KEYS[self._name]))
        reply = await self.client.reply()
        assert reply.status == 200, reply
        found = reply.json()
        assert (found["id"], found["metadata"]) == (self._job_id, {"of": self._name})


# --- ends by the server ---


async def test_a_shutdown_under_streams_logs_nothing_and_cancels_them(stack: Stack) -> None:
    ending = start(stack, grace_s=1)
    streams = [await streaming(ending) for _ in range(LEAVING)]
    for n, behind in enumerate(("nothing", "a_request", "an_upgrade", "many_requests")):
        streams[n][0].send(BEHIND[behind])
    ending.terminate()
    for client, job_id in streams:
        rest = await client.read_for(60)
        own_bytes(rest, job_id)
        assert b'"code": "gateway_stopped"' in rest
        client.close()
    assert ending.popen.wait(60) is not None
    assert "Traceback" not in ending.log.read_text()
    another_gateway = start(stack)
    await nothing_goes_on(another_gateway)
    another_gateway.terminate()


async def test_an_idle_connection_is_closed(stack: Stack) -> None:
    hasty = start(stack, idle_connection_s=1)
    client, job_id = await streaming(hasty, tokens=10)
    while await client.chunk(job_id):
        pass
    assert await client.rest() == b""
    client.close()
    await another(hasty, 0)
    await nothing_goes_on(hasty)
    hasty.terminate()

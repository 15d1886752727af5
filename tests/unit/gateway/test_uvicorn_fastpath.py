"""The fast path does what uvicorn's own `send` and `receive` do, or nothing."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest
import uvloop
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.http import uvicorn_fastpath
from gateway.http.asgi_io import (
    AsgiWriter,
    buffered_body,
    chunk_writer,
    on_disconnect,
    start_response_at_once,
)
from shared.platform import fast_paths
from tests.harness.waiting import eventually

START = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}
CHUNKS = [b"data: 1\n\n", b"x" * 16, b"\xff" * 70_000, b"\r\n", b"0\r\n\r\n"]


class Transport:
    """A connection's other end."""

    def __init__(self) -> None:
        self.written = b""
        self.calls: list[str] = []
        self.unsent = 0
        self.closing = False
        self.extra: dict[str, Any] = {}

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def write(self, data: bytes) -> None:
        self.written += data
        self.calls.append("write")

    def is_closing(self) -> bool:
        return self.closing

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def close(self) -> None:
        self.calls.append("close")

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


def asked(method: str = "POST") -> tuple[RequestResponseCycle, Transport]:
    """A request that has begun, as uvicorn makes it."""
    transport: Any = Transport()
    log = logging.getLogger("test")
    scope: Any = {"method": method, "http_version": "1.1", "path": "/"}
    cycle = RequestResponseCycle(
        scope=scope,
        transport=transport,
        flow=FlowControl(transport),
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )
    return cycle, transport


async def opened(method: str = "POST", headers: Any = ()) -> tuple[RequestResponseCycle, Transport]:
    """A response that has begun."""
    cycle, transport = asked(method)
    start: Any = {**START, "headers": [(b"x", b"y"), *headers]}
    await cycle.send(start)
    transport.written = b""
    return cycle, transport


def part(data: bytes) -> Any:
    return {"type": "http.response.body", "body": data, "more_body": True}


@pytest.mark.parametrize("data", CHUNKS)
async def test_the_writer_writes_what_uvicorn_would(data: bytes) -> None:
    cycle, transport = await opened()
    assert chunk_writer(cycle.send).write(data)  # type: ignore[arg-type]
    ours, transport.written = transport.written, b""
    await cycle.send(part(data))
    assert ours == transport.written != b""


async def test_the_writer_writes_nothing_while_bytes_are_unsent() -> None:
    cycle, transport = await opened()
    body = chunk_writer(cycle.send)  # type: ignore[arg-type]
    transport.unsent = 1
    assert not body.write(b"x")
    assert transport.written == b""
    transport.unsent = 0
    assert body.write(b"x")
    assert transport.written == b"1\r\nx\r\n"


async def test_the_writer_writes_nothing_to_a_closing_connection() -> None:
    cycle, transport = await opened()
    body = chunk_writer(cycle.send)  # type: ignore[arg-type]
    transport.closing = True
    assert not body.write(b"x")
    assert transport.written == b""


# --- the same on real sockets, with the product's own loop and any other ---

RUNNERS = [asyncio.run, uvloop.run]


@contextlib.asynccontextmanager
async def connected() -> AsyncIterator[tuple[RequestResponseCycle, Any, socket.socket]]:
    """A response that has begun on a real connection, its transport, and its client."""
    made: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    class Server(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(transport)

    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", 0)
    async with server:
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.setblocking(False)
            transport = await made
            cycle, _ = asked()
            cycle.transport, cycle.flow = transport, FlowControl(transport)
            cycle.response_started = cycle.chunked_encoding = True
            try:
                yield cycle, transport, client
            finally:
                transport.abort()


async def received(client: socket.socket, size: int) -> bytes:
    data = b""
    async with asyncio.timeout(30):
        while len(data) < size:
            data += await asyncio.get_running_loop().sock_recv(client, 1 << 20)
    return data


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_slow_client_gets_what_was_written_and_no_more(runner: Callable[..., None]) -> None:
    async def run() -> None:
        async with connected() as (cycle, transport, client):
            body = chunk_writer(cycle.send)  # type: ignore[arg-type]
            sent = 0
            while body.write(b"x" * 50_000):
                sent += 1
                assert sent < 10_000, "a socket without an end"
            assert transport.get_write_buffer_size() <= 50_010  # of the last one, the rest
            assert not body.write(b"behind it")
            framed = b"c350\r\n" + b"x" * 50_000 + b"\r\n"
            assert await received(client, sent * len(framed)) == framed * sent
            assert body.write(b"y")  # it has caught up
            assert await received(client, 6) == b"1\r\ny\r\n"

    runner(run())


@pytest.mark.parametrize("end", ["close", "abort", "client"])
@pytest.mark.parametrize("runner", RUNNERS)
def test_nothing_is_written_to_a_reused_file_descriptor(
    runner: Callable[..., None], end: str
) -> None:
    async def run() -> None:
        async with connected() as (cycle, transport, client):
            number = transport.get_extra_info("socket").fileno()
            body = chunk_writer(cycle.send)  # type: ignore[arg-type]
            assert body.write(b"x")
            if end == "client":
                client.close()
            else:
                getattr(transport, end)()
            await eventually(partial(_free, number), "the socket is closed")
            others = socket.socketpair()
            with others[0], others[1]:
                # As the next connection that the process opens or accepts would.
                assert number in (others[0].fileno(), others[1].fileno())
                assert not body.write(b"secret")
                assert not chunk_writer(cycle.send).write(b"secret")  # type: ignore[arg-type]
                for each in others:
                    each.setblocking(False)
                    with pytest.raises(BlockingIOError):
                        each.recv(100)

    runner(run())


async def _free(number: int) -> bool:
    try:
        os.fstat(number)
    except OSError:
        return True
    return False


async def test_encryption_is_not_bypassed() -> None:
    cycle, transport = await opened()
    ours, plain = socket.socketpair()
    with ours, plain:
        transport.extra |= {"socket": plain, "sslcontext": object()}
        assert chunk_writer(cycle.send).write(b"x")  # type: ignore[arg-type]
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(100)
    assert transport.written == b"1\r\nx\r\n"


async def test_a_body_of_known_length_goes_through_uvicorns_send() -> None:
    cycle, transport = await opened(headers=[(b"content-length", b"2")])
    assert chunk_writer(cycle.send).write(b"ab")  # type: ignore[arg-type]
    assert transport.written == b"ab"


async def test_the_send_of_another_server_is_run_until_it_would_wait() -> None:
    sent: list[Message] = []
    room = asyncio.Event()

    async def send(message: Message) -> None:
        await room.wait()
        sent.append(message)

    body = chunk_writer(send)
    assert not body.write(b"1")
    assert sent == []
    room.set()
    assert body.write(b"2")
    assert sent == [part(b"2")]


async def test_a_send_that_raises_has_written_nothing() -> None:
    async def send(message: Message) -> None:
        raise RuntimeError("closed")

    assert not chunk_writer(send).write(b"1")


# --- the beginning of a response ---

LENGTH = (b"content-length", b"2")


def state(cycle: RequestResponseCycle) -> tuple[Any, ...]:
    return (
        cycle.response_started,
        cycle.response_complete,
        cycle.chunked_encoding,
        cycle.expected_content_length,
        cycle.waiting_for_100_continue,
        cycle.message_event.is_set(),
    )


@pytest.mark.parametrize("keep_alive", [True, False])
@pytest.mark.parametrize("status", [200, 400, 503])
@pytest.mark.parametrize(
    ("headers", "body", "more"),
    [
        ([], b"ab", True),
        ([], b"", True),
        ([], b"ab", False),
        ([], b"", False),
        ([(b"x-request-id", b"a b\tc")], b"\xff" * 70_000, True),
        ([LENGTH], b"ab", False),
        ([(b"x", b"y"), LENGTH, (b"z", b"")], b"ab", False),
    ],
)
async def test_a_response_starts_as_uvicorns_own(
    headers: Any, body: bytes, more: bool, status: int, keep_alive: bool
) -> None:
    answered_by: list[str] = []
    cycles = []
    for name in ("uvicorn", "begin"):
        cycle, transport = asked()
        cycle.keep_alive = keep_alive
        cycle.default_headers = [(b"date", b"today")]
        cycle.waiting_for_100_continue = True
        cycle.on_response = lambda name=name: answered_by.append(name)  # type: ignore[misc]
        cycles.append((cycle, transport))
    (plain, expected), (cycle, transport) = cycles
    start: Any = {**START, "status": status, "headers": headers}
    await plain.send(start)
    await plain.send({**part(body), "more_body": more})
    assert start_response_at_once(cycle.send, status, headers, body, more=more)  # type: ignore[arg-type]
    assert transport.written == expected.written
    assert transport.calls == ["write", *expected.calls[2:]]
    assert state(cycle) == state(plain)
    assert answered_by == ([] if more else ["uvicorn", "begin"])
    if more:  # and both go on alike
        for each in (plain, cycle):
            await each.send({**part(b"end"), "more_body": False})
        assert transport.written == expected.written
        assert state(cycle) == state(plain)


def _begun(cycle: RequestResponseCycle) -> None:
    cycle.response_started = True


def _gone(cycle: RequestResponseCycle) -> None:
    cycle.disconnected = True


def _full(cycle: RequestResponseCycle) -> None:
    cycle.flow.pause_writing()


def _logged(cycle: RequestResponseCycle) -> None:
    cycle.access_log = True


def _head(cycle: RequestResponseCycle) -> None:
    cycle.scope["method"] = "HEAD"


@pytest.mark.parametrize("becomes", [_begun, _gone, _full, _logged, _head])
async def test_unusual_responses_are_left_to_uvicorn(becomes: Any) -> None:
    cycle, transport = asked()
    becomes(cycle)
    before = state(cycle)
    assert not start_response_at_once(cycle.send, 200, [LENGTH], b"ab", more=False)  # type: ignore[arg-type]
    assert transport.calls == []
    assert state(cycle) == before


@pytest.mark.parametrize(
    ("headers", "more"),
    [([(b"x", b"y\r\nz: 1"), LENGTH], False), ([(b"x", b"\x00")], True), ([LENGTH], True)],
)
async def test_invalid_responses_are_left_to_uvicorn(headers: Any, more: bool) -> None:
    cycle, transport = asked()
    before = state(cycle)
    assert not start_response_at_once(cycle.send, 200, headers, b"ab", more=more)  # type: ignore[arg-type]
    assert transport.calls == []
    assert state(cycle) == before


async def test_the_response_of_another_server_is_not_started() -> None:
    async def send(message: Message) -> None:
        raise AssertionError

    assert not start_response_at_once(send, 200, [LENGTH], b"ab", more=False)


# --- the body ---


def comes(cycle: RequestResponseCycle, body: bytes, *, more: bool = False) -> None:
    """As uvicorn's protocol does it."""
    cycle.body += body
    cycle.message_event.set()
    if not more:
        cycle.more_body = False
        cycle.message_event.set()


def leaves(cycle: RequestResponseCycle) -> None:
    """As uvicorn's protocol does it."""
    if not cycle.response_complete:
        cycle.disconnected = True
    cycle.message_event.set()


@pytest.mark.parametrize("body", [b"", b"x", b"x" * 100_000])
async def test_a_buffered_body_is_what_uvicorn_would_give(body: bytes) -> None:
    (ours, _), (theirs, _) = asked(), asked()
    for cycle in (ours, theirs):
        comes(cycle, body)
    whole = buffered_body(ours.receive)  # type: ignore[arg-type]
    message = await theirs.receive()
    assert message == {"type": "http.request", "body": whole, "more_body": False}
    assert type(whole) is bytes
    # And what follows is the same: nothing, until the client leaves.
    for cycle in (ours, theirs):
        rest = asyncio.create_task(cycle.receive())
        await asyncio.sleep(0)
        assert not rest.done()
        leaves(cycle)
        assert (await rest)["type"] == "http.disconnect"


async def test_reading_resumes_once_the_body_is_taken() -> None:
    cycle, _ = asked()
    cycle.flow.pause_reading()  # the body was more than uvicorn likes to keep
    comes(cycle, b"x")
    assert buffered_body(cycle.receive) == b"x"  # type: ignore[arg-type]
    assert not cycle.flow.read_paused


async def test_an_incomplete_body_is_not_taken() -> None:
    cycle, _ = asked()
    assert buffered_body(cycle.receive) is None  # type: ignore[arg-type]
    comes(cycle, b"a", more=True)
    assert buffered_body(cycle.receive) is None  # type: ignore[arg-type]
    assert (await cycle.receive())["body"] == b"a"  # type: ignore[typeddict-item]
    comes(cycle, b"b")
    assert buffered_body(cycle.receive) == b"b"  # type: ignore[arg-type]


async def test_a_client_that_left_has_no_body() -> None:
    cycle, _ = asked()
    comes(cycle, b"a")
    leaves(cycle)
    assert buffered_body(cycle.receive) is None  # type: ignore[arg-type]


async def test_the_body_from_another_server_is_not_taken() -> None:
    async def receive() -> Message:
        raise AssertionError("called")

    assert buffered_body(receive) is None


# --- the end of a connection ---


async def test_the_callback_is_called_on_a_disconnect_only() -> None:
    cycle, _ = asked()
    comes(cycle, b"x")
    buffered_body(cycle.receive)  # type: ignore[arg-type]
    left: list[bool] = []
    on_disconnect(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    await cycle.send(START)  # type: ignore[arg-type]
    comes(cycle, b"")
    assert left == []
    leaves(cycle)
    assert left == [True]


async def test_the_callback_is_called_at_once_if_the_client_left_before() -> None:
    cycle, _ = asked()
    leaves(cycle)
    left: list[bool] = []
    forget = on_disconnect(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    assert left == [True]
    forget()


@pytest.mark.parametrize("complete", [False, True])
async def test_the_callback_is_not_called_once_stopped_or_complete(complete: bool) -> None:
    cycle, _ = asked()
    left: list[bool] = []
    forget = on_disconnect(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    if complete:
        await cycle.send(START)  # type: ignore[arg-type]
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        forget()
    leaves(cycle)
    assert left == []


async def test_uvicorns_own_receive_still_reports_the_disconnect() -> None:
    cycle, _ = asked()
    on_disconnect(cycle.receive, lambda: None)  # type: ignore[arg-type]
    rest = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    leaves(cycle)
    assert (await rest)["type"] == "http.disconnect"


async def test_receive_of_another_server_is_called_until_the_disconnect() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    left = asyncio.Event()
    on_disconnect(messages.get, left.set)
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    for _ in range(5):
        await asyncio.sleep(0)
    assert messages.empty()
    assert not left.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(30):
        await left.wait()


async def test_receive_of_another_server_is_cancelled_when_stopped() -> None:
    cancelled = asyncio.Event()

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    forget = on_disconnect(receive, lambda: None)
    await asyncio.sleep(0)
    forget()
    async with asyncio.timeout(30):
        await cancelled.wait()


# --- which way is taken ---


@pytest.fixture
def off(monkeypatch: pytest.MonkeyPatch) -> None:
    """FLOTILLA_FAST_PATHS=off."""
    monkeypatch.setattr(fast_paths, "_mode", "off")


async def test_switched_off_everything_goes_through_asgi(off: None) -> None:
    cycle, transport = asked()
    comes(cycle, b"body")
    send: Any = cycle.send
    receive: Any = cycle.receive
    assert buffered_body(receive) is None
    assert (await receive())["body"] == b"body"
    left: list[bool] = []
    stop = on_disconnect(receive, lambda: left.append(True))
    assert not start_response_at_once(send, 200, [LENGTH], b"ab", more=False)
    assert transport.calls == []
    await send(START)
    assert isinstance(chunk_writer(send), AsgiWriter)
    leaves(cycle)
    for _ in range(5):
        await asyncio.sleep(0)
    assert left == [True]
    stop()


@pytest.mark.parametrize("change", ["attribute", "parameters", "constant"])
async def test_another_uvicorn_is_used_by_asgi_alone_and_that_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, change: str
) -> None:
    if change == "attribute":
        monkeypatch.setattr(uvicorn_fastpath, "_ATTRIBUTES", "transport moved")
    elif change == "parameters":

        async def send(self: Any, message: Any, trailers: Any = None) -> None:
            raise AssertionError

        monkeypatch.setattr(RequestResponseCycle, "send", send)
    else:
        monkeypatch.delattr("uvicorn.protocols.http.httptools_impl.STATUS_LINE")
    path = fast_paths.FastPath("uvicorn", uvicorn_fastpath._problem)
    monkeypatch.setattr(uvicorn_fastpath, "UVICORN", path)
    cycle, transport = asked()
    for _ in range(3):
        assert not start_response_at_once(cycle.send, 200, [], b"a", more=True)  # type: ignore[arg-type]
    assert transport.calls == []
    assert len(caplog.records) == 1

"""The wire: the same as uvicorn's own `send` and `receive`, or nothing at all."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.wire import begin, body_at_hand, when_left, writer

START = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}
CHUNKS = [b"data: 1\n\n", b"x" * 16, b"\xff" * 70_000, b"\r\n", b"0\r\n\r\n"]


class Transport:
    """A connection's other end."""

    def __init__(self) -> None:
        self.written = b""
        self.calls: list[str] = []
        self.unsent = 0
        self.extra: dict[str, Any] = {}

    def get_extra_info(self, name: str) -> Any:
        return self.extra.get(name)

    def write(self, data: bytes) -> None:
        self.written += data
        self.calls.append("write")

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


@pytest.fixture
def client() -> Iterator[socket.socket]:
    """Reads what is written to `client.server`."""
    ours, server = Client.pair()
    with ours, server:
        yield ours


class Client(socket.socket):
    server: socket.socket

    @classmethod
    def pair(cls) -> tuple[Client, socket.socket]:
        a, server = socket.socketpair()
        server.setblocking(False)
        client = cls(fileno=a.detach())
        client.setblocking(False)
        client.server = server
        return client, server

    def received(self) -> bytes:
        data = b""
        while True:
            try:
                more = self.recv(1 << 20)
            except BlockingIOError:
                return data
            data += more


@pytest.mark.parametrize("data", CHUNKS)
async def test_it_writes_what_uvicorn_would(data: bytes, client: Client) -> None:
    cycle, transport = await opened()
    transport.extra["socket"] = client.server
    assert writer(cycle.send).take(data)  # type: ignore[arg-type]
    ours = client.received() + transport.written
    transport.written = b""
    await cycle.send(part(data))
    assert ours == transport.written != b""


async def test_what_a_full_socket_does_not_take_is_the_transports(client: Client) -> None:
    cycle, transport = await opened()
    transport.extra["socket"] = client.server
    body = writer(cycle.send)  # type: ignore[arg-type]
    sent = 0
    while not transport.written:
        assert body.take(b"x" * 50_000)
        sent += 1
    assert not body.take(b"behind it")
    framed = b"c350\r\n" + b"x" * 50_000 + b"\r\n"
    assert client.received() + transport.written == framed * sent
    assert not body.take(b"still the task's")
    assert client.received() == b""


async def test_it_writes_nothing_while_something_waits_to_be_sent(client: Client) -> None:
    cycle, transport = await opened()
    transport.extra["socket"] = client.server
    transport.unsent = 1
    assert not writer(cycle.send).take(b"x")  # type: ignore[arg-type]
    transport.unsent = 0
    assert writer(cycle.send).take(b"x")  # type: ignore[arg-type]
    assert client.received() == b"1\r\nx\r\n"


async def test_a_client_that_has_gone_has_taken_nothing(client: Client) -> None:
    cycle, transport = await opened()
    transport.extra["socket"] = client.server
    body = writer(cycle.send)  # type: ignore[arg-type]
    client.close()
    assert not body.take(b"x")
    assert transport.written == b""


async def test_nothing_goes_past_encryption(client: Client) -> None:
    cycle, transport = await opened()
    transport.extra |= {"socket": client.server, "sslcontext": object()}
    assert writer(cycle.send).take(b"x")  # type: ignore[arg-type]
    assert (client.received(), transport.written) == (b"", b"1\r\nx\r\n")


async def test_a_body_of_known_length_goes_through_uvicorns_send() -> None:
    cycle, transport = await opened(headers=[(b"content-length", b"2")])
    assert writer(cycle.send).take(b"ab")  # type: ignore[arg-type]
    assert transport.written == b"ab"


async def test_any_other_send_is_driven_as_far_as_it_goes_without_waiting() -> None:
    sent: list[Message] = []
    room = asyncio.Event()

    async def send(message: Message) -> None:
        await room.wait()
        sent.append(message)

    body = writer(send)
    assert not body.take(b"1")
    assert sent == []
    room.set()
    assert body.take(b"2")
    assert sent == [part(b"2")]


async def test_a_send_that_raises_has_written_nothing() -> None:
    async def send(message: Message) -> None:
        raise RuntimeError("closed")

    assert not writer(send).take(b"1")


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
async def test_a_response_begins_as_uvicorn_would_begin_it(
    headers: Any, body: bytes, more: bool, status: int, keep_alive: bool
) -> None:
    told: list[str] = []
    cycles = []
    for name in ("uvicorn", "begin"):
        cycle, transport = asked()
        cycle.keep_alive = keep_alive
        cycle.default_headers = [(b"date", b"today")]
        cycle.waiting_for_100_continue = True
        cycle.on_response = lambda name=name: told.append(name)  # type: ignore[misc]
        cycles.append((cycle, transport))
    (plain, expected), (cycle, transport) = cycles
    start: Any = {**START, "status": status, "headers": headers}
    await plain.send(start)
    await plain.send({**part(body), "more_body": more})
    assert begin(cycle.send, status, headers, body, more=more)  # type: ignore[arg-type]
    assert transport.written == expected.written
    assert transport.calls == ["write", *expected.calls[2:]]
    assert state(cycle) == state(plain)
    assert told == ([] if more else ["uvicorn", "begin"])
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
async def test_what_is_no_usual_beginning_is_uvicorns(becomes: Any) -> None:
    cycle, transport = asked()
    becomes(cycle)
    before = state(cycle)
    assert not begin(cycle.send, 200, [LENGTH], b"ab", more=False)  # type: ignore[arg-type]
    assert transport.calls == []
    assert state(cycle) == before


@pytest.mark.parametrize(
    ("headers", "more"),
    [([(b"x", b"y\r\nz: 1"), LENGTH], False), ([(b"x", b"\x00")], True), ([LENGTH], True)],
)
async def test_what_must_not_be_sent_is_left_to_uvicorn(headers: Any, more: bool) -> None:
    cycle, transport = asked()
    before = state(cycle)
    assert not begin(cycle.send, 200, headers, b"ab", more=more)  # type: ignore[arg-type]
    assert transport.calls == []
    assert state(cycle) == before


async def test_with_any_other_server_nothing_is_begun() -> None:
    async def send(message: Message) -> None:
        raise AssertionError

    assert not begin(send, 200, [LENGTH], b"ab", more=False)


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
async def test_a_body_that_has_come_is_what_uvicorn_would_give(body: bytes) -> None:
    (ours, _), (theirs, _) = asked(), asked()
    for cycle in (ours, theirs):
        comes(cycle, body)
    whole = body_at_hand(ours.receive)  # type: ignore[arg-type]
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


async def test_the_connection_is_read_again_when_its_body_is_taken() -> None:
    cycle, _ = asked()
    cycle.flow.pause_reading()  # the body was more than uvicorn likes to keep
    comes(cycle, b"x")
    assert body_at_hand(cycle.receive) == b"x"  # type: ignore[arg-type]
    assert not cycle.flow.read_paused


async def test_a_body_that_has_not_come_yet_is_waited_for() -> None:
    cycle, _ = asked()
    assert body_at_hand(cycle.receive) is None  # type: ignore[arg-type]
    comes(cycle, b"a", more=True)
    assert body_at_hand(cycle.receive) is None  # type: ignore[arg-type]
    assert (await cycle.receive())["body"] == b"a"  # type: ignore[typeddict-item]
    comes(cycle, b"b")
    assert body_at_hand(cycle.receive) == b"b"  # type: ignore[arg-type]


async def test_a_client_that_has_left_has_no_body() -> None:
    cycle, _ = asked()
    comes(cycle, b"a")
    leaves(cycle)
    assert body_at_hand(cycle.receive) is None  # type: ignore[arg-type]


async def test_of_any_other_server_the_body_is_received() -> None:
    async def receive() -> Message:
        raise AssertionError("called")

    assert body_at_hand(receive) is None


# --- the end of a connection ---


async def test_it_hears_when_the_client_leaves_and_of_nothing_else() -> None:
    cycle, _ = asked()
    comes(cycle, b"x")
    body_at_hand(cycle.receive)  # type: ignore[arg-type]
    left: list[bool] = []
    when_left(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    await cycle.send(START)  # type: ignore[arg-type]
    comes(cycle, b"")
    assert left == []
    leaves(cycle)
    assert left == [True]


async def test_who_has_left_already_is_heard_of_at_once() -> None:
    cycle, _ = asked()
    leaves(cycle)
    left: list[bool] = []
    forget = when_left(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    assert left == [True]
    forget()


@pytest.mark.parametrize("complete", [False, True])
async def test_who_does_not_want_to_know_any_more_hears_nothing(complete: bool) -> None:
    cycle, _ = asked()
    left: list[bool] = []
    forget = when_left(cycle.receive, lambda: left.append(True))  # type: ignore[arg-type]
    if complete:
        await cycle.send(START)  # type: ignore[arg-type]
        await cycle.send({"type": "http.response.body", "body": b"", "more_body": False})
    else:
        forget()
    leaves(cycle)
    assert left == []


async def test_uvicorns_own_receive_still_tells_when_the_client_leaves() -> None:
    cycle, _ = asked()
    when_left(cycle.receive, lambda: None)  # type: ignore[arg-type]
    rest = asyncio.create_task(cycle.receive())
    await asyncio.sleep(0)
    leaves(cycle)
    assert (await rest)["type"] == "http.disconnect"


async def test_any_other_server_is_asked_until_it_says_that_the_client_has_left() -> None:
    messages: asyncio.Queue[Message] = asyncio.Queue()
    left = asyncio.Event()
    when_left(messages.get, left.set)
    messages.put_nowait({"type": "http.request", "body": b"", "more_body": False})
    for _ in range(5):
        await asyncio.sleep(0)
    assert messages.empty()
    assert not left.is_set()
    messages.put_nowait({"type": "http.disconnect"})
    async with asyncio.timeout(30):
        await left.wait()


async def test_any_other_server_is_asked_no_more_by_who_does_not_want_to_know() -> None:
    cancelled = asyncio.Event()

    async def receive() -> Message:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    forget = when_left(receive, lambda: None)
    await asyncio.sleep(0)
    forget()
    async with asyncio.timeout(30):
        await cancelled.wait()

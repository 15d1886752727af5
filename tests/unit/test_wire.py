"""The wire: the same bytes as uvicorn's own `send`, or nothing at all."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from starlette.types import Message
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gateway.wire import writer

START = {"type": "http.response.start", "status": 200, "headers": [(b"x", b"y")]}
CHUNKS = [b"data: 1\n\n", b"x" * 16, b"\xff" * 70_000, b"\r\n", b"0\r\n\r\n"]


class Transport:
    """A connection's other end."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += data

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass


async def opened(method: str = "POST", headers: Any = ()) -> tuple[RequestResponseCycle, Transport]:
    """A response that has begun, as uvicorn makes it."""
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
    start: Any = START | {"headers": [*START["headers"], *headers]}
    await cycle.send(start)
    transport.written = b""
    return cycle, transport


def part(data: bytes) -> Any:
    return {"type": "http.response.body", "body": data, "more_body": True}


@pytest.mark.parametrize("data", CHUNKS)
async def test_it_writes_what_uvicorn_would(data: bytes) -> None:
    cycle, transport = await opened()
    assert writer(cycle.send)(data)  # type: ignore[arg-type]
    ours, transport.written = transport.written, b""
    await cycle.send(part(data))
    assert ours == transport.written != b""


@pytest.mark.parametrize("state", ["paused", "gone", "over"])
async def test_it_writes_nothing_where_uvicorn_would_wait_or_drop(state: str) -> None:
    cycle, transport = await opened()
    write = writer(cycle.send)  # type: ignore[arg-type]
    if state == "paused":
        cycle.flow.pause_writing()
    cycle.disconnected = state == "gone"
    cycle.response_complete = state == "over"
    assert not write(b"x")
    assert transport.written == b""


async def test_a_body_of_known_length_goes_through_uvicorns_send() -> None:
    cycle, transport = await opened(headers=[(b"content-length", b"2")])
    assert writer(cycle.send)(b"ab")  # type: ignore[arg-type]
    assert transport.written == b"ab"


async def test_any_other_send_is_driven_as_far_as_it_goes_without_waiting() -> None:
    sent: list[Message] = []
    room = asyncio.Event()

    async def send(message: Message) -> None:
        await room.wait()
        sent.append(message)

    write = writer(send)
    assert not write(b"1")
    assert sent == []
    room.set()
    assert write(b"2")
    assert sent == [part(b"2")]


async def test_a_send_that_raises_has_written_nothing() -> None:
    async def send(message: Message) -> None:
        raise RuntimeError("closed")

    assert not writer(send)(b"1")

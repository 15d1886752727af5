"""An ASGI application called in process: request, response, disconnect, errors."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from worker.core.run import Exchange


async def test_the_application_gets_the_request_as_from_a_server() -> None:
    seen: dict[str, Any] = {}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        seen.update(
            method=request.method,
            path=request.url.path,
            body=await request.body(),
            type=request.headers["content-type"],
            length=request.headers["content-length"],
            own=request.headers["x-own"],
        )
        request.state.own = 1
        await Response()(scope, receive, send)

    await Exchange().run(app, "POST", "/v1/x", b"\xff\x00", ((b"x-own", b"yes"),))
    assert seen == {
        "method": "POST",
        "path": "/v1/x",
        "body": b"\xff\x00",
        "type": "application/json",
        "length": "2",
        "own": "yes",
    }


async def test_of_the_responses_headers_those_for_the_client_are_kept() -> None:
    exchange = Exchange()
    headers = {"metadata": '{"data": []}', "server": "x"}
    await exchange.run(StreamingResponse(iter([b"\x00", b"\xff"]), headers=headers), "POST", "/")
    assert exchange.headers == (("metadata", '{"data": []}'),)
    assert bytes(exchange.body) == b"\x00\xff"


async def test_a_full_response_is_gathered() -> None:
    chunks: list[bytes] = []
    exchange = Exchange(chunks.append)
    await exchange.run(JSONResponse({"a": "ü"}, 418), "GET", "/")
    assert (exchange.status, exchange.content_type) == (418, "application/json")
    assert bytes(exchange.body) == '{"a":"ü"}'.encode()
    assert not exchange.streaming
    assert chunks == []


def stream(media_type: str) -> StreamingResponse:
    return StreamingResponse(iter([b"data: 1\n\n", b"", b"data: 2\n\n"]), media_type=media_type)


@pytest.mark.parametrize("media_type", ["text/event-stream", "text/event-stream; charset=utf-8"])
async def test_an_event_stream_is_passed_on_part_by_part(media_type: str) -> None:
    chunks: list[bytes] = []
    exchange = Exchange(chunks.append)
    await exchange.run(stream(media_type), "POST", "/")
    assert chunks == [b"data: 1\n\n", b"data: 2\n\n"]
    assert exchange.streaming
    assert bytes(exchange.body) == b""


@pytest.mark.parametrize("listens", [False, True])
async def test_a_stream_without_a_callback_is_gathered(listens: bool) -> None:
    chunks: list[bytes] = []
    exchange = Exchange(chunks.append if listens else None)
    media_type = "text/plain" if listens else "text/event-stream"
    await exchange.run(stream(media_type), "POST", "/")
    assert bytes(exchange.body) == b"data: 1\n\ndata: 2\n\n"
    assert chunks == []


async def test_the_disconnect_is_received_only_after_it_is_set() -> None:
    received: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(2):
            message = await receive()
            received.append(message["type"])

    exchange = Exchange()
    running = asyncio.create_task(exchange.run(app, "GET", "/"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert received == ["http.request"]
    assert not running.done()
    exchange.disconnect.set()
    await running
    assert received == ["http.request", "http.disconnect"]


async def test_an_error_of_the_application_is_raised() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    exchange = Exchange()
    with pytest.raises(ZeroDivisionError):
        await exchange.run(app, "GET", "/")
    assert exchange.status == 0


async def test_other_tasks_run_while_a_large_stream_that_never_waits_is_sent() -> None:
    turns, chunks = 0, [b"x" * (8 << 10)] * 40

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async def at_once() -> AsyncIterator[bytes]:
        for chunk in chunks:
            yield chunk

    beside = asyncio.create_task(others())
    received: list[bytes] = []
    await Exchange(received.append).run(
        StreamingResponse(at_once(), media_type="text/event-stream"), "POST", "/"
    )
    beside.cancel()
    assert received == chunks
    assert turns >= len(chunks) // 4

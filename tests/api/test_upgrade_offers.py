"""Offers of another protocol in `Upgrade`, as of the JDK's client, are ignored."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Process, Stack
from tests.harness.strict_client import StrictClient, request

KEY = "key-of-ann-123456"
OFFERS = {
    "h2c": (
        "Connection: Upgrade, HTTP2-Settings",
        "Upgrade: h2c",
        "HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA",
    ),
    "websocket": (
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Sec-WebSocket-Version: 13",
        "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
    ),
    "several": ("Connection: keep-alive, upgrade", "Upgrade: TLS/1.3, h2c"),
}
MODELS = request("GET", "/v1/models", KEY)


def sent(offer: str, *, chunked: bool = False, stream: bool = False, pad: int = 0) -> bytes:
    """A call of three tokens with this offer."""
    body = chat(max_tokens=3, ignore_eos=True, stream=stream)
    if not chunked:
        return request("POST", CHAT, KEY, body, *OFFERS[offer], pad=pad)
    further = ("Content-Type: application/json", "Transfer-Encoding: chunked")
    content = json.dumps(body).encode() + b" " * pad
    parts = [content[:10], content[10:]]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts)
    head = request("POST", CHAT, KEY, None, *OFFERS[offer], *further)
    return head + chunks + b"0\r\nX-Trailer: x\r\n\r\n"


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0)
    return module_stack.gateway(api_keys=f"ann:{KEY}")


async def goes_on(client: StrictClient) -> None:
    """The connection serves what is sent next, and nothing else comes."""
    client.send(MODELS)
    assert (await client.reply()).status == 200
    await client.expect_silence(0.05)
    client.close()


def is_answered(reply: Any, *, stream: bool = False) -> None:
    assert reply.status == 200, reply
    if stream:
        assert reply.body.endswith(b"data: [DONE]\n\n")
    else:
        assert reply.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("offer", OFFERS)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("chunked", [False, True])
async def test_a_call_is_answered(
    gateway: Process, offer: str, stream: bool, chunked: bool
) -> None:
    client = await StrictClient.connect(gateway.url)
    for pad in (0, 100_000):
        client.send(sent(offer, chunked=chunked, stream=stream, pad=pad))
        is_answered(await client.reply(), stream=stream)
    await goes_on(client)


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_call_that_arrives_in_pieces_is_answered(gateway: Process, chunked: bool) -> None:
    data = sent("h2c", chunked=chunked)
    behind_head = data.index(b"\r\n\r\n") + 4
    for cut in (10, behind_head - 2, behind_head, behind_head + 1, len(data) - 1):
        client = await StrictClient.connect(gateway.url)
        client.send(data[:cut])
        await asyncio.sleep(0.02)
        client.send(data[cut:])
        is_answered(await client.reply())
        await goes_on(client)


@pytest.mark.parametrize("offer", OFFERS)
async def test_requests_behind_it_are_answered_in_order(gateway: Process, offer: str) -> None:
    plain = request("GET", "/v1/models", KEY, None, *OFFERS[offer])
    client = await StrictClient.connect(gateway.url)
    client.send(plain + sent(offer) + sent(offer, chunked=True) + plain + MODELS)
    for is_call in (False, True, True, False, False):
        reply = await client.reply()
        assert reply.status == 200
        assert ("usage" in reply.json()) is is_call
    await goes_on(client)


async def test_a_body_is_no_request(gateway: Process) -> None:
    for length in (len(MODELS), len(MODELS) - 1):
        client = await StrictClient.connect(gateway.url)
        client.send(
            request("POST", CHAT, KEY, None, *OFFERS["h2c"], f"Content-Length: {length}")
            + MODELS[:length]
        )
        assert (await client.reply()).status == 415  # as of any request without a content type
        await goes_on(client)


async def test_a_tunnel_is_refused(gateway: Process) -> None:
    for target in ("other.example:443", "/"):
        client = await StrictClient.connect(gateway.url)
        client.send(request("CONNECT", target, KEY) + MODELS)
        status, headers = await client.head()
        assert (status, headers[b"connection"]) == (400, b"close")
        assert len(await client.rest()) == int(headers[b"content-length"])
        client.close()

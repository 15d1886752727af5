"""Plays a trace against a fleet: one streamed request for each line, at its time.

The client is a plain asyncio protocol: hundreds of streams are open at once, and an HTTP library
would take the CPU time that the fleet needs.
"""

from __future__ import annotations

import asyncio
import csv
import json
import re
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from load_tests.fairness.difference import Call
from load_tests.harness.errors import RunError
from load_tests.systems.engine import MODEL

_TEXT = re.compile(rb'"text":"([^"]*)"')
_TOKEN = "tok "
"""Four bytes are one token of the simulated engine."""
_COLUMNS = {"client", "at_s", "prompt_tokens", "output_tokens"}


def read_trace(path: Path, most: int = 0) -> list[Call]:
    """The calls of a CSV file with these columns; `most`: the first so many, 0: all.

    Raises RunError.
    """
    try:
        with path.open(newline="") as file:
            rows = csv.DictReader(file)
            if not set(rows.fieldnames or ()) >= _COLUMNS:
                raise RunError(f"{path}: the first line must name {', '.join(sorted(_COLUMNS))}")
            calls = [
                Call(
                    row["client"],
                    float(row["at_s"]),
                    int(row["prompt_tokens"]),
                    int(row["output_tokens"]),
                )
                for row in rows
            ]
    except (OSError, ValueError) as error:
        raise RunError(f"{path}: {error}") from error
    return calls[: most or None]


def key_of(tenant: str) -> str:
    """The API key of a tenant."""
    return f"key-of-{tenant}"


class _Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, call: Call, request: bytes, now: _Clock) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._call, self._request, self._clock = call, request, now
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the time of the tokens in it."""
        self._parts.append(data)
        tokens = data.count(b'"text":"')
        self._call.token_times_s.extend([self._clock.now()] * tokens)

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer has ended."""
        call, answer = self._call, b"".join(self._parts)
        call.text = b"".join(_TEXT.findall(answer)).decode()
        found = len(call.token_times_s)
        if call.detached:
            call.problem = "" if answer.startswith(b"HTTP/1.1 202") else answer[:200].decode()
        elif not answer.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in answer:
            call.problem = answer[:200].decode(errors="replace") or "no answer"
        elif found != call.output_tokens:
            call.problem = f"{found} tokens instead of {call.output_tokens}"
        if not self.done.done():
            self.done.set_result(None)


class _Clock:
    """Seconds of the trace, which runs `speed` times as fast as real time."""

    def __init__(self, speed: float) -> None:
        self._speed, self._began = speed, time.monotonic()

    def now(self) -> float:
        return (time.monotonic() - self._began) * self._speed

    async def wait_until(self, at_s: float) -> None:
        await asyncio.sleep(max(0.0, at_s - self.now()) / self._speed)


async def play(
    trace: Sequence[Call], ports: Sequence[int], speed: float, *, one_tenant: bool
) -> list[Call]:
    """Send all calls and wait for their answers. `one_tenant`: all with the same key."""
    loop, clock, streams = asyncio.get_running_loop(), _Clock(speed), []
    calls = [replace(call, token_times_s=[]) for call in trace]
    for n, call in enumerate(calls):
        await clock.wait_until(call.at_s)
        port = ports[n % len(ports)]
        request = _request(call, n, key_of("all" if one_tenant else call.tenant))
        stream = _Stream(call, request, clock)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)  # type: ignore[misc]
        streams.append(stream.done)
    await asyncio.gather(*streams)
    return calls


def _request(call: Call, n: int, key: str) -> bytes:
    number = f"{n:07d} "
    prompt = (number + _TOKEN * call.prompt_tokens)[: 4 * call.prompt_tokens]
    wanted: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": call.output_tokens,
        "ignore_eos": True,
        "stream": not call.detached,
    }
    path = "/v1/completions"
    if call.detached:
        path, wanted = "/jobs", {"endpoint": path, "body": wanted}
    body = json.dumps(wanted).encode()
    head = (
        f"POST {path} HTTP/1.1",
        "host: 127.0.0.1",
        f"authorization: Bearer {key}",
        "content-type: application/json",
        f"content-length: {len(body)}",
        "connection: close",
    )
    return "\r\n".join(head).encode() + b"\r\n\r\n" + body

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
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from load_tests.fairness.difference import Call
from load_tests.harness.errors import RunError
from load_tests.systems.engine import MODEL

_TEXT = re.compile(rb'"text":"([^"]*)"')
_USAGE = re.compile(rb'"completion_tokens":(\d+)')
_T = TypeVar("_T")
_AT_ONCE = 64
_MOST_LATE_S = 2.0
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

    def __init__(self, call: Call, request: bytes, now: Clock) -> None:
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.call, self._request, self._clock = call, request, now
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Note the time of the tokens in it."""
        self._parts.append(data)
        tokens = 0 if self.call.detached else data.count(b'"text":"')
        self.call.token_times_s.extend([self._clock.now()] * tokens)

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer has ended."""
        call, answer = self.call, b"".join(self._parts)
        call.text = b"".join(_TEXT.findall(answer)).decode()
        usage = _USAGE.findall(answer)  # where it was asked for: an event may have several tokens
        found = int(usage[-1]) if usage else len(call.token_times_s)
        if call.detached:
            call.problem = "" if answer.startswith(b"HTTP/1.1 202") else answer[:200].decode()
        elif not answer.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in answer:
            call.problem = answer[:200].decode(errors="replace") or "no answer"
        elif found != call.output_tokens:
            call.problem = f"{found} tokens instead of {call.output_tokens}"
        if not self.done.done():
            self.done.set_result(None)


class Clock:
    """Seconds of the trace, which runs `speed` times as fast as real time."""

    def __init__(self, speed: float) -> None:
        self.speed, self._began = speed, time.monotonic()

    def start(self) -> None:
        """Begin the trace now."""
        self._began = time.monotonic()

    def now(self) -> float:
        """The time since the trace began."""
        return (time.monotonic() - self._began) * self.speed

    async def wait_until(self, at_s: float) -> None:
        """Sleep until this time of the trace."""
        await asyncio.sleep(max(0.0, at_s - self.now()) / self.speed)

    def check(self, n: int, at_s: float) -> None:
        """Raise RunError if call `n` was sent too late."""
        if self.now() > at_s + _MOST_LATE_S:
            raise RunError(f"call {n} was sent {self.now() - at_s:.1f} s late: --speed")


async def play(
    trace: Sequence[Call],
    ports: Sequence[int],
    speed: float,
    *,
    one_tenant: bool = False,
    fields: Mapping[str, Any] = MappingProxyType({}),
) -> list[Call]:
    """Send all calls and wait for their answers. `one_tenant`: all with the same key.

    `fields`: what requests have that those to the simulated engine have not.
    Detached ones are submitted before the clock starts. Raises RunError if this process was too
    slow to send the others in time.
    """
    calls = [replace(call, token_times_s=[]) for call in trace]
    clock = Clock(speed)

    async def send(n: int, call: Call) -> asyncio.Future[None]:
        key = key_of("all" if one_tenant else call.tenant)
        stream = _Stream(call, _request(call, n, key, fields), clock)
        loop, port = asyncio.get_running_loop(), ports[n % len(ports)]
        await loop.create_connection(lambda: stream, "127.0.0.1", port)
        return stream.done

    numbered = list(enumerate(calls))
    detached = [each for each in numbered if each[1].detached]
    for some in batched(detached, _AT_ONCE):
        await asyncio.gather(*[await send(*each) for each in some])
    clock.start()
    streams = []
    for n, call in numbered:
        if not call.detached:
            await clock.wait_until(call.at_s)
            streams.append(await send(n, call))
            clock.check(n, call.at_s)
    await asyncio.gather(*streams)
    return calls


def batched(items: Sequence[_T], size: int) -> Iterator[Sequence[_T]]:
    """The items, `size` at a time."""
    for at in range(0, len(items), size):
        yield items[at : at + size]


def _request(call: Call, n: int, key: str, fields: Mapping[str, Any]) -> bytes:
    number = f"{n:07d} "
    prompt = (number + _TOKEN * call.prompt_tokens)[: 4 * call.prompt_tokens]
    wanted: dict[str, Any] = {
        "model": MODEL,
        "prompt": prompt,
        "max_tokens": call.output_tokens,
        "ignore_eos": True,
        "stream": not call.detached,
        **fields,
    }
    path = "/v1/completions"
    if call.detached:
        path, wanted = "/jobs", {"endpoint": path, "body": wanted}
    return post(path, key, wanted)


def post(path: str, key: str, wanted: Mapping[str, Any]) -> bytes:
    """A request with this body, on a connection of its own."""
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

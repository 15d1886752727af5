"""Plays a trace against a fleet: one streamed request for each call, at its time."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass

from load_tests.fairness.player import Clock, key_of, post
from load_tests.harness.errors import RunError
from load_tests.placement.trace import Call, prompt
from load_tests.systems.engine import MODEL

KEY = key_of("all")
_JOB_ID = re.compile(rb"x-flotilla-job-id: (\S+)\r\n", re.IGNORECASE)
_CACHED = re.compile(rb'"cached_tokens":(\d+)')
_OUTPUT = re.compile(rb'"completion_tokens":(\d+)')
_READ = 200
"""So many jobs are read after a run: those whose first token took longest."""


@dataclass(slots=True)
class Answer:
    """What a call got. Times are seconds of the trace."""

    ttft_s: float = 0.0
    """From the call's time in the trace."""
    cached_tokens: int = 0
    job_id: str = ""
    port: int = 0
    """Of its gateway."""
    problem: str = ""
    """Why it has no whole answer; empty if it has one."""


class _Stream(asyncio.Protocol):
    """One request on a connection of its own."""

    def __init__(self, call: Call, port: int, clock: Clock) -> None:
        self.done: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._answer = Answer(port=port)
        self._call, self._clock = call, clock
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        assert isinstance(transport, asyncio.WriteTransport)
        wanted = {
            "model": MODEL,
            "prompt": prompt(self._call),
            "max_tokens": self._call.output_tokens,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        transport.write(post("/v1/completions", KEY, wanted))

    def data_received(self, data: bytes) -> None:
        """Note the time of the first token."""
        if not self._answer.ttft_s and b'"text":"' in data:
            self._answer.ttft_s = self._clock.now() - self._call.at_s
        self._parts.append(data)

    def connection_lost(self, exc: Exception | None) -> None:
        """The answer has ended."""
        answer, text = self._answer, b"".join(self._parts)
        generated, cached = _OUTPUT.findall(text), _CACHED.findall(text)
        if not text.startswith(b"HTTP/1.1 200") or b"data: [DONE]" not in text:
            answer.problem = text[:200].decode(errors="replace") or "no answer"
        elif not cached or int(generated[-1]) != self._call.output_tokens:
            answer.problem = f"its usage is wrong: {text[-300:].decode(errors='replace')}"
        else:
            answer.cached_tokens = int(cached[-1])
            answer.job_id = _JOB_ID.findall(text)[0].decode()
        if not self.done.done():
            self.done.set_result(answer)


async def play(calls: Sequence[Call], ports: Sequence[int], speed: float) -> list[Answer]:
    """Send all calls and wait for their answers.

    Raises RunError if this process was too slow to send them in time.
    """
    loop, clock, streams = asyncio.get_running_loop(), Clock(speed), list[_Stream]()
    for n, call in enumerate(calls):
        await clock.wait_until(call.at_s)
        port = ports[n % len(ports)]
        stream = _Stream(call, port, clock)
        await loop.create_connection(lambda stream=stream: stream, "127.0.0.1", port)  # type: ignore[misc]
        clock.check(n, call.at_s)
        streams.append(stream)
    return await asyncio.gather(*(stream.done for stream in streams))


async def longest_wait_s(answers: Sequence[Answer], speed: float) -> float:
    """How long a job waited for a worker at most. Raises RunError."""
    slowest = sorted(answers, key=lambda answer: -answer.ttft_s)[:_READ]
    return speed * max([await _queued_s(each.port, each.job_id) for each in slowest])


async def _queued_s(port: int, job_id: str) -> float:
    """How long a job waited for its first worker, by Redis' clock."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    head = (f"GET /jobs/{job_id} HTTP/1.1", "host: 127.0.0.1", f"authorization: Bearer {KEY}")
    writer.write("\r\n".join((*head, "connection: close", "", "")).encode())
    answer = await reader.read()
    writer.close()
    try:
        job = json.loads(answer.partition(b"\r\n\r\n")[2])
        waited_s: float = job["attempts"][0]["started_at"] - job["created_at"]
    except (ValueError, LookupError) as error:
        raise RunError(f"the job {job_id} can't be read: {answer[:200]!r}") from error
    return waited_s

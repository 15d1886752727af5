"""A client of the endpoints themselves: one request, its answer streamed or in one piece."""

from __future__ import annotations

import time

import httpx

from load_tests.faults.kills.http_client import JOB_ID, Gateways, error_code
from load_tests.faults.kills.observation import End, Observation
from load_tests.faults.kills.sse_parser import SseParser

_NOT_ACCEPTED = (429, 503)


async def call(gateways: Gateways, seen: Observation) -> None:
    """Send the request and note in `seen` what comes."""
    request = seen.request
    try:
        async with gateways.resuming.stream("POST", request.path, json=request.body) as response:
            seen.job_id = response.headers.get(JOB_ID, "")
            if "text/event-stream" in response.headers.get("content-type", ""):
                await _read_stream(response, seen)
            else:
                _note_whole(seen, response.status_code, await response.aread())
    except httpx.ConnectError:
        seen.end, seen.code = End.REFUSED, "ConnectError"
    except httpx.HTTPError as error:
        seen.end, seen.code = End.CUT, type(error).__name__


async def _read_stream(response: httpx.Response, seen: Observation) -> None:
    parser = SseParser()
    async for data in response.aiter_raw():
        for event in parser.feed(data):
            if event.data.startswith(b'{"error"'):
                seen.end, seen.code = End.FAILED, error_code(event.data)
                return
            if seen.answer.add_chunk(event.data):
                seen.at.append(time.monotonic())
    if seen.answer.done:
        seen.end = End.COMPLETE


def _note_whole(seen: Observation, status: int, body: bytes) -> None:
    if status == 200:
        seen.end = End.COMPLETE
        seen.answer.set_body(status, body)
        return
    seen.code = error_code(body) or str(status)
    seen.end = End.REFUSED if status in _NOT_ACCEPTED else End.FAILED
    if status == seen.expected.answer.status:
        seen.end = End.COMPLETE
        seen.answer.set_body(status, body)

"""A client of /jobs: submits a request, then polls the job or follows its events."""

from __future__ import annotations

import asyncio
import json
import random
import time
from typing import Any

import httpx

from load_tests.faults.kills.http_client import Gateways, error_code
from load_tests.faults.kills.observation import End, Observation
from load_tests.faults.kills.request_classes import Mode
from load_tests.faults.kills.sse_parser import SseEvent, SseParser

_POLL_S = 0.15
_RETRY_S = 0.1
_TERMINAL = {"completed", "failed", "cancelled", "expired"}
_REPEATED = {"queued", "in_progress"}
"""Events with the id of the one before."""
_MAY_GO_ON = {"redis_unavailable", "gateway_stopped"}
"""Codes of an `error` event after which the events can be taken up again."""
_LEAVE_SHARE = 0.08
"""Share of events after which a client of Mode.RESUMED closes its connection."""


async def submit_and_read(gateways: Gateways, seen: Observation, rng: random.Random) -> None:
    """Submit the request as a job, read its answer; note in `seen` what comes."""
    if not await _submit(gateways, seen):
        return
    client = _JobClient(gateways, seen, rng)
    if seen.request.mode is Mode.POLLED:
        await client.poll()
    else:
        await client.follow()
    if seen.end is End.COMPLETE and not (seen.request.stream and seen.streams):
        await client.read_result()


async def _submit(gateways: Gateways, seen: Observation) -> bool:
    wanted = {"endpoint": seen.request.path, "body": seen.request.body}
    try:
        response = await gateways.resuming.post("/jobs", json=wanted)
    except httpx.HTTPError as error:
        seen.end, seen.code = End.REFUSED, type(error).__name__
        return False
    if response.status_code != 202:
        seen.end, seen.code = End.REFUSED, error_code(response.content) or str(response.status_code)
        return False
    seen.job_id = response.json()["id"]
    return True


class _JobClient:
    """Reads one job from any gateway; goes on after broken connections and 503."""

    def __init__(self, gateways: Gateways, seen: Observation, rng: random.Random) -> None:
        self._gateways = gateways
        self._seen = seen
        self._rng = rng
        self._last_id = ""

    async def poll(self) -> None:
        """Read the job until it has ended."""
        while (job := await self._get(f"/jobs/{self._seen.job_id}")) is not None:
            if self._note_end(job.json()):
                return
            await asyncio.sleep(_POLL_S)

    async def read_result(self) -> None:
        """Read the whole answer of a job that has completed."""
        response = await self._get(f"/jobs/{self._seen.job_id}/result")
        if response is None:
            return
        answer = self._seen.answer
        if "text/event-stream" in response.headers.get("content-type", ""):
            for event in SseParser().feed(response.content):
                answer.add_chunk(event.data)
        else:
            answer.set_body(response.status_code, response.content)

    async def follow(self) -> None:
        """Read the job's events to the last one, over as many connections as it takes."""
        connections = 0
        while not await self._read_events():
            connections += 1
            self._seen.reconnects = connections
            await asyncio.sleep(_RETRY_S if connections % 2 == 0 else 0)

    async def _read_events(self) -> bool:
        """Read one connection's events; return whether the job has ended."""
        seen = self._seen
        url = f"{self._gateways.url()}/jobs/{seen.job_id}/events"
        headers = {"last-event-id": self._last_id} if self._last_id else {}
        parser = SseParser()
        try:
            async with self._gateways.plain.stream("GET", url, headers=headers) as response:
                if response.status_code == 204:
                    return True
                if response.status_code != 200:
                    return self._note_refusal(response.status_code, await response.aread())
                async for data in response.aiter_raw():
                    for event in parser.feed(data):
                        if (ended := self._note_event(event)) is not None:
                            return ended
                    if seen.request.mode is Mode.RESUMED and self._rng.random() < _LEAVE_SHARE:
                        return False
        except httpx.HTTPError:
            await asyncio.sleep(_RETRY_S)
        return False

    def _note_event(self, event: SseEvent) -> bool | None:
        """Note an event; return whether the job has ended, None if the connection goes on."""
        seen = self._seen
        if event.name == "error":
            code = error_code(event.data)
            if code in _MAY_GO_ON:
                return False
            seen.end, seen.code = End.FAILED, code
            return True
        if event.id:
            before, now = _position(self._last_id), _position(event.id)
            seen.out_of_order += now < before or (now == before and event.name not in _REPEATED)
            self._last_id = event.id
        if event.name in _TERMINAL:
            seen.terminal_events += 1
            seen.answer.done = True
            return self._note_end(json.loads(event.data))
        if event.name == "chunk":
            seen.answer.add_chunk(event.data)
            seen.at.append(time.monotonic())
        elif event.name == "delta":
            for choice in json.loads(event.data)["choices"]:
                seen.answer.add_text(choice["index"], choice["text"])
            seen.at.append(time.monotonic())
        return None

    def _note_end(self, job: dict[str, Any]) -> bool:
        """Return whether the job has ended."""
        seen = self._seen
        if job["state"] not in _TERMINAL:
            return False
        seen.end = End.COMPLETE if job["state"] == "completed" else End.FAILED
        if seen.end is End.FAILED:
            seen.code = str((job.get("error") or {}).get("code") or job["state"])
            if job.get("status_code") == seen.expected.answer.status:
                seen.end = End.COMPLETE  # the engine refuses this request
        return True

    def _note_refusal(self, status: int, body: bytes) -> bool:
        if status >= 500:
            return False
        self._seen.end, self._seen.code = End.FAILED, error_code(body) or str(status)
        return True

    async def _get(self, path: str) -> httpx.Response | None:
        """Read a path from any gateway until one answers; None for a job that is gone."""
        while True:
            try:
                response = await self._gateways.resuming.get(path)
            except httpx.HTTPError:
                await asyncio.sleep(_RETRY_S)
                continue
            if response.status_code < 300:
                return response
            if response.status_code >= 500:
                await asyncio.sleep(_RETRY_S)
                continue
            self._note_refusal(response.status_code, response.content)
            return None


def _position(event_id: str) -> tuple[int, float]:
    """Return an event's place: entry, and which of the entry's chunks."""
    entry, dot, chunk = event_id.partition(".")
    return int(entry or 0), float(chunk) if dot else float("inf") if entry else 0.0

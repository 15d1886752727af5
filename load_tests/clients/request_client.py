"""Sends one request and notes what comes: an answer, or a job that is polled or followed."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from typing import Any

import httpx

from load_tests.clients.gateways import JOB_ID, Gateways, error_code
from load_tests.clients.sse_parser import SseEvent, SseParser
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import Mode

_NOT_ACCEPTED = (429, 503)
_POLL_S = 0.15
_RETRY_S = 0.1
_TERMINAL = {"completed", "failed", "cancelled", "expired"}
_END_ID = "end"
_REPEATED = {"queued", "in_progress"}
"""Events with the id of the one before."""
_MAY_GO_ON = {"redis_unavailable", "gateway_stopped"}
"""Codes of an `error` event after which the events can be taken up again."""
_LEAVE_SHARE = 0.08
"""Share of events after which a client of Mode.RESUMED closes its connection."""
_LEAVES_AFTER_S = (0.1, 1.0)
"""When a client that does not stay leaves, or cancels its job."""


async def send_request(gateways: Gateways, seen: Observation) -> None:
    """Send the request and read its answer as its mode says; note in `seen` what comes."""
    client = _RequestClient(gateways, seen)
    if seen.request.mode is Mode.LEFT:
        await client.call_and_leave()
    elif seen.request.mode is Mode.CALL:
        await client.call()
    elif await client.submit():
        await client.read_job()


class _RequestClient:
    """One request. A job is read from any gateway, again after broken connections and 503."""

    def __init__(self, gateways: Gateways, seen: Observation) -> None:
        self._gateways = gateways
        self._seen = seen
        self._rng = random.Random(seen.request.tag)
        self._last_id = ""

    async def call(self) -> None:
        """Call the endpoint itself; if a plain client gets no answer at all, the next gateway."""
        seen = self._seen
        *others, last = self._gateways.in_turn()
        try:
            for client in others:
                try:
                    return await self._call(client)
                except httpx.TransportError:
                    if seen.job_id:
                        raise
            await self._call(last)
        except httpx.HTTPError as error:
            began = seen.job_id or self._gateways.resumes
            refused = isinstance(error, httpx.ConnectError) or not began
            seen.end, seen.code = End.REFUSED if refused else End.CUT, type(error).__name__

    async def call_and_leave(self) -> None:
        """As `call`, but close the connection before the end."""
        try:
            async with asyncio.timeout(self._rng.uniform(*_LEAVES_AFTER_S)):
                await self.call()
        except TimeoutError:
            self._seen.end = End.LEFT

    async def submit(self) -> bool:
        """Submit the request as a job; return whether it was accepted."""
        seen = self._seen
        wanted = {"endpoint": seen.request.path, "body": seen.request.body}
        for client in self._gateways.in_turn():
            try:
                response = await client.post("/jobs", json=wanted)
                break
            except httpx.HTTPError as error:
                seen.end, seen.code = End.REFUSED, type(error).__name__
        else:
            return False
        if response.status_code != 202:
            code = error_code(response.content) or str(response.status_code)
            seen.end, seen.code = End.REFUSED, code
            return False
        seen.job_id = response.json()["id"]
        return True

    async def read_job(self) -> None:
        """Read the job's answer to its end, or cancel it."""
        seen = self._seen
        if seen.request.mode is Mode.CANCELLED:
            await self._cancel()
        elif seen.request.mode is Mode.POLLED:
            await self._poll()
        else:
            await self._follow()
        if seen.end is End.COMPLETE and not (seen.request.stream and seen.streams):
            await self._read_result()

    async def _call(self, client: httpx.AsyncClient) -> None:
        seen = self._seen
        request = seen.request
        async with client.stream("POST", request.path, json=request.body) as response:
            seen.job_id = response.headers.get(JOB_ID, "")
            if "text/event-stream" in response.headers.get("content-type", ""):
                await self._read_stream(response)
            else:
                self._note_whole(response.status_code, await response.aread())

    async def _read_stream(self, response: httpx.Response) -> None:
        seen, parser = self._seen, SseParser()
        async for data in response.aiter_bytes():
            for event in parser.feed(data):
                if event.data.startswith(b'{"error"'):
                    seen.end, seen.code = End.FAILED, error_code(event.data)
                    return
                if seen.answer.add_chunk(event.data):
                    seen.at.append(time.monotonic())
        if seen.answer.done:
            seen.end = End.COMPLETE

    def _note_whole(self, status: int, body: bytes) -> None:
        seen = self._seen
        if status in (200, seen.expected.answer.status):
            seen.end = End.COMPLETE
            seen.answer.set_body(status, body)
            return
        seen.code = error_code(body) or str(status)
        seen.end = End.REFUSED if status in _NOT_ACCEPTED else End.FAILED

    async def _poll(self) -> None:
        """Read the job until it has ended."""
        seen, text = self._seen, ""
        while (response := await self._send("GET", f"/jobs/{seen.job_id}")) is not None:
            job = response.json()
            if (now := job.get("text") or "") != text:
                text = now
                seen.at.append(time.monotonic())
            if self._note_end(job):
                return
            await asyncio.sleep(_POLL_S)

    async def _cancel(self) -> None:
        seen = self._seen
        await asyncio.sleep(self._rng.uniform(*_LEAVES_AFTER_S))
        response = await self._send("POST", f"/jobs/{seen.job_id}/cancel")
        if response is None:
            return
        job = response.json()
        seen.end = End.LEFT if job["state"] == "cancelled" else End.FAILED
        seen.code = job["state"]
        seen.answer.add_text(0, job.get("text") or "")

    async def _read_result(self) -> None:
        """Read the whole answer of a job that has completed."""
        response = await self._send("GET", f"/jobs/{self._seen.job_id}/result")
        if response is None:
            return
        answer = self._seen.answer
        if "text/event-stream" in response.headers.get("content-type", ""):
            for event in SseParser().feed(response.content):
                answer.add_chunk(event.data)
        else:
            answer.set_body(response.status_code, response.content)

    async def _follow(self) -> None:
        """Read the job's events to the last one, over as many connections as it takes."""
        connections = 0
        while not await self._read_events():
            connections += 1
            await asyncio.sleep(_RETRY_S if connections % 2 == 0 else 0)

    async def _read_events(self) -> bool:
        """Read one connection's events; return whether the job has ended."""
        seen, parser = self._seen, SseParser()
        path = f"/jobs/{seen.job_id}/events"
        headers = {"last-event-id": self._last_id} if self._last_id else {}
        try:
            async with self._gateways.plain.stream("GET", path, headers=headers) as response:
                if response.status_code == 204:
                    return True
                if response.status_code != 200:
                    return self._note_refusal(response.status_code, await response.aread())
                async for data in response.aiter_bytes():
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
            of_each = seen.request.body.get("n", 1)
            for choice in json.loads(event.data)["choices"]:
                number = choice.get("prompt", 0) * of_each + choice["index"]
                seen.answer.add_text(number, choice["text"])
            seen.at.append(time.monotonic())
        return None

    def _note_end(self, job: dict[str, Any]) -> bool:
        """Return whether the job has ended."""
        seen = self._seen
        if job["state"] not in _TERMINAL:
            return False
        lost = job.get("text", "") is None and "text_omitted" not in job
        seen.end = End.COMPLETE if job["state"] == "completed" and not lost else End.FAILED
        if seen.end is End.FAILED:
            seen.code = str((job.get("error") or {}).get("code") or job["state"])
            if job.get("status_code") == seen.expected.answer.status != 200:
                seen.end = End.COMPLETE  # the engine refuses this request
        seen.job_texts = {each["index"]: each["text"] for each in job.get("choices") or ()}
        return True

    def _note_refusal(self, status: int, body: bytes) -> bool:
        if status >= 500:
            return False
        code = "gone" if status == 404 else error_code(body) or str(status)
        self._seen.end, self._seen.code = End.FAILED, code
        return True

    async def _send(self, method: str, path: str) -> httpx.Response | None:
        """Ask any gateway until one answers; None for a job that is gone."""
        while True:
            try:
                response = await self._gateways.in_turn()[0].request(method, path)
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
    if event_id == _END_ID:
        return sys.maxsize, 0.0
    entry, dot, chunk = event_id.partition(".")
    return int(entry or 0), float(chunk) if dot else float("inf") if entry else 0.0

"""Clients that stream answers, and clients that submit jobs and poll them, in a loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from load_tests.faults.call_outcome import CallEnd, CallOutcome
from load_tests.faults.checked_request import checked_request
from load_tests.systems.engine import CHAT_PATH

_POLL_S = 0.2
_RETRY_S = 0.3
"""Pause after a refusal, so that clients do not fill the CPU with retries."""
_CONCURRENT_RECORDS = 8
_RECORD_S = 10.0

Json = dict[str, Any]


class Clients:
    """A group of clients. `start` begins their loops, `stop` ends them; `outcomes` collects."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        streams: int = 30,
        jobs: int = 10,
        tokens: int = 120,
        timeout_s: float = 40.0,
        seed: int = 1,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """Make clients of the gateways at `urls`.

        `tokens` is the length of an answer, `timeout_s` a client's limit for a call; `transport`
        replaces the network in tests.
        """
        self.outcomes: list[CallOutcome] = []
        self.open: dict[str, CallOutcome] = {}
        """Calls that have not ended, by tag."""
        self._urls = list(urls)
        self._streams, self._jobs, self._tokens = streams, jobs, tokens
        self._timeout_s = timeout_s
        self._seed = seed
        self._count = itertools.count()
        self._turn = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(timeout=timeout_s, limits=limits, transport=transport)

    def start(self) -> None:
        """Start `streams` + `jobs` clients, each with one call after the other."""
        for n in range(self._streams + self._jobs):
            is_job = n >= self._streams
            self._tasks.append(asyncio.create_task(self._loop(n, is_job=is_job)))

    async def stop(self) -> None:
        """Begin no new calls; wait until each client's last call has ended."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """Cancel all clients and close their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def call(
        self, tag: str, *, tokens: int, stream: bool = True, job: bool = False
    ) -> CallOutcome:
        """Make one call and wait for its end; whatever the server does is noted in the outcome."""
        request = await checked_request(tag, tokens, stream=stream)
        outcome = CallOutcome(request, is_job=job, began=time.monotonic())
        self.open[tag] = outcome
        recorder = _CallRecorder(outcome)
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._try(recorder)
        except TimeoutError:
            outcome.end = CallEnd.HUNG
        except (httpx.HTTPError, OSError) as error:
            outcome.end = CallEnd.CUT if outcome.job_id else CallEnd.REFUSED
            outcome.code = type(error).__name__ if outcome.end is CallEnd.REFUSED else ""
        recorder.end()
        del self.open[tag]
        self.outcomes.append(outcome)
        outcome.check_tokens()
        return outcome

    async def compare_records(self, outcomes: Sequence[CallOutcome] | None = None) -> int:
        """Compare outcomes (default: all) with their jobs' records, once each.

        Returns how many jobs have no record.
        """
        limit = asyncio.Semaphore(_CONCURRENT_RECORDS)

        async def compare(outcome: CallOutcome) -> bool:
            async with limit:
                record = await self._record(outcome.job_id)
            outcome.check_record(record)
            return record is None

        chosen = self.outcomes if outcomes is None else outcomes
        known = [outcome for outcome in chosen if outcome.job_id and outcome.accepted]
        return sum(await asyncio.gather(*map(compare, known)))

    async def _loop(self, n: int, *, is_job: bool) -> None:
        await asyncio.sleep(0.02 * n)  # spreads the clients
        stream = not is_job or n % 2 == 0
        while not self._stopping:
            tag = f"{self._seed}-{n}-{next(self._count)}"
            outcome = await self.call(tag, tokens=self._tokens, stream=stream, job=is_job)
            if outcome.end in (CallEnd.REFUSED, CallEnd.CUT):
                await asyncio.sleep(_RETRY_S)

    async def _try(self, recorder: _CallRecorder) -> None:
        """Call one gateway; if it does not answer at all, the next."""
        do = self._submit_and_poll if recorder.outcome.is_job else self._read
        first = next(self._turn) % len(self._urls)
        *urls, last = self._urls[first:] + self._urls[:first]
        for url in urls:
            try:
                return await do(recorder, url)
            except httpx.TransportError:
                if recorder.outcome.job_id:
                    raise
        return await do(recorder, last)

    async def _read(self, recorder: _CallRecorder, url: str) -> None:
        outcome = recorder.outcome
        body = outcome.request.body
        async with self._http.stream("POST", f"{url}{CHAT_PATH}", json=body) as answer:
            outcome.job_id = answer.headers.get("x-flotilla-job-id", "")
            if answer.status_code != 200:
                await answer.aread()
                refused = answer.status_code == 503 or not outcome.job_id
                outcome.end = CallEnd.REFUSED if refused else CallEnd.FAILED
                outcome.code = _error_code(answer)
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    recorder.event(line.removeprefix("data: "))

    async def _submit_and_poll(self, recorder: _CallRecorder, url: str) -> None:
        outcome = recorder.outcome
        wanted = {"endpoint": CHAT_PATH, "body": outcome.request.body}
        answer = await self._http.post(f"{url}/jobs", json=wanted)
        if answer.status_code != 202:
            outcome.end, outcome.code = CallEnd.REFUSED, _error_code(answer)
            return
        outcome.job_id = answer.json()["id"]
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                answer = await self._http.get(f"{self._any_url()}/jobs/{outcome.job_id}")
            except httpx.TransportError:
                continue  # the gateway is restarting; the job still exists
            if answer.status_code == 404:
                outcome.end, outcome.code = CallEnd.GONE, "gone"
                return
            if answer.status_code == 200 and recorder.job(answer.json()):
                return

    async def _record(self, job_id: str) -> Json | None:
        until = time.monotonic() + _RECORD_S
        while time.monotonic() < until:
            try:
                answer = await self._http.get(
                    f"{self._urls[next(self._turn) % len(self._urls)]}/jobs/{job_id}"
                )
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code == 404:
                return None
            if answer is not None and answer.status_code == 200:
                found: Json = answer.json()
                if found["state"] not in ("queued", "in_progress"):
                    return found
            await asyncio.sleep(_POLL_S)
        return None

    def _any_url(self) -> str:
        return self._urls[next(self._turn) % len(self._urls)]


class _CallRecorder:
    """Records in an outcome what a client reads."""

    def __init__(self, outcome: CallOutcome) -> None:
        self.outcome = outcome
        outcome.last_token = outcome.began

    def token(self) -> None:
        """A token was received."""
        now = time.monotonic()
        outcome = self.outcome
        outcome.longest_silence_s = max(outcome.longest_silence_s, now - outcome.last_token)
        outcome.last_token = now

    def end(self) -> None:
        """The call has ended."""
        outcome = self.outcome
        outcome.ended = time.monotonic()
        silence_s = outcome.ended - outcome.last_token
        outcome.longest_silence_s = max(outcome.longest_silence_s, silence_s)

    def event(self, data: str) -> None:
        """An event of a stream was received."""
        outcome = self.outcome
        if data == "[DONE]":
            outcome.end = CallEnd.COMPLETE if outcome.finish_reason else CallEnd.CUT
            return
        try:
            event = json.loads(data)
        except ValueError:
            outcome.errors.append(f"an event is not JSON: {data[:80]!r}")
            return
        if "error" in event:
            outcome.end, outcome.code = CallEnd.FAILED, str(event["error"].get("code"))
            return
        for choice in event.get("choices", ()):
            content = choice["delta"].get("content")
            if content:
                outcome.text += content
                self.token()
            outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason

    def job(self, job: Json) -> bool:
        """A job's record was received; return whether the job has ended."""
        outcome = self.outcome
        text = job.get("text") or ""
        if text != outcome.text:
            self.token()
            outcome.text = text
        if job["state"] in ("queued", "in_progress"):
            return False
        # `text` is null if the record has lost tokens.
        lost = job.get("text", "") is None
        outcome.end = (
            CallEnd.COMPLETE if job["state"] == "completed" and not lost else CallEnd.FAILED
        )
        if outcome.end is CallEnd.FAILED:
            outcome.code = str((job.get("error") or {}).get("code", job["state"]))
        if outcome.complete and "result" in job:
            result_text = job["result"]["choices"][0]["message"]["content"]
            if result_text != text:
                outcome.errors.append("the job's result and its text differ")
        return True


def _error_code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return str(answer.status_code)

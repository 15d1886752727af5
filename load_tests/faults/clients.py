"""Clients that stream, and clients that submit jobs and poll them, in a loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import Sequence
from typing import Any

import httpx

from load_tests.faults.checked_request import CHAT, question
from load_tests.faults.outcome import End, Outcome

_POLL_S = 0.2
_AGAIN_S = 0.3
"""After a refusal; a client that asks at once again measures itself."""
_RECORDS_AT_ONCE = 8
_RECORD_S = 10.0

Json = dict[str, Any]


class Clients:
    """They run from `start` to the end of `stop`. `outcomes` grows."""

    def __init__(
        self,
        urls: Sequence[str],
        *,
        streams: int = 30,
        jobs: int = 10,
        tokens: int = 120,
        patience_s: float = 40.0,
        seed: int = 1,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        """`transport` replaces the network."""
        self.outcomes: list[Outcome] = []
        self.open: dict[str, Outcome] = {}
        """By tag: those that have not ended."""
        self._urls = list(urls)
        self._streams, self._jobs, self._tokens = streams, jobs, tokens
        self._patience_s = patience_s
        self._seed = seed
        self._count = itertools.count()
        self._turn = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(timeout=patience_s, limits=limits, transport=transport)

    def start(self) -> None:
        for n in range(self._streams + self._jobs):
            is_job = n >= self._streams
            self._tasks.append(asyncio.create_task(self._loop(n, is_job=is_job)))

    async def stop(self) -> None:
        """Returns when every client has its last answer; none waits beyond its patience."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._http.aclose()

    async def ask(
        self, tag: str, *, tokens: int, stream: bool = True, job: bool = False
    ) -> Outcome:
        """One request, to its end. Never raises for what a server does."""
        asked = await question(tag, tokens, stream=stream)
        outcome = Outcome(asked, is_job=job, began=time.monotonic())
        self.open[tag] = outcome
        look = _Look(outcome)
        try:
            async with asyncio.timeout(self._patience_s):
                await self._try(look)
        except TimeoutError:
            outcome.end = End.HUNG
        except (httpx.HTTPError, OSError) as error:
            outcome.end = End.CUT if outcome.job_id else End.REFUSED
            outcome.code = type(error).__name__ if outcome.end is End.REFUSED else ""
        look.end()
        del self.open[tag]
        self.outcomes.append(outcome)
        outcome.judge()
        return outcome

    async def compare_records(self, outcomes: Sequence[Outcome] | None = None) -> int:
        """Compare outcomes (all, if none are given) with their jobs' records; how many have none.

        Do it once for each.
        """
        limit = asyncio.Semaphore(_RECORDS_AT_ONCE)

        async def compare(outcome: Outcome) -> bool:
            async with limit:
                record = await self._record(outcome.job_id)
            outcome.judge_record(record)
            return record is None

        asked = self.outcomes if outcomes is None else outcomes
        known = [outcome for outcome in asked if outcome.job_id and outcome.accepted]
        return sum(await asyncio.gather(*map(compare, known)))

    async def _loop(self, n: int, *, is_job: bool) -> None:
        await asyncio.sleep(0.02 * n)  # not in step with each other
        stream = not is_job or n % 2 == 0
        while not self._stopping:
            tag = f"{self._seed}-{n}-{next(self._count)}"
            outcome = await self.ask(tag, tokens=self._tokens, stream=stream, job=is_job)
            if outcome.end in (End.REFUSED, End.CUT):
                await asyncio.sleep(_AGAIN_S)

    async def _try(self, look: _Look) -> None:
        """At one gateway, and where that has not answered at all at the next."""
        do = self._submit_and_poll if look.outcome.is_job else self._read
        first = next(self._turn) % len(self._urls)
        *urls, last = self._urls[first:] + self._urls[:first]
        for url in urls:
            try:
                return await do(look, url)
            except httpx.TransportError:
                if look.outcome.job_id:
                    raise
        return await do(look, last)

    async def _read(self, look: _Look, url: str) -> None:
        outcome = look.outcome
        body = outcome.question.body
        async with self._http.stream("POST", f"{url}{CHAT}", json=body) as answer:
            outcome.job_id = answer.headers.get("x-flotilla-job-id", "")
            if answer.status_code != 200:
                await answer.aread()
                refused = answer.status_code == 503 or not outcome.job_id
                outcome.end = End.REFUSED if refused else End.FAILED
                outcome.code = _error_code(answer)
                return
            async for line in answer.aiter_lines():
                if line.startswith("data: "):
                    look.event(line.removeprefix("data: "))

    async def _submit_and_poll(self, look: _Look, url: str) -> None:
        outcome = look.outcome
        wanted = {"endpoint": CHAT, "body": outcome.question.body}
        answer = await self._http.post(f"{url}/jobs", json=wanted)
        if answer.status_code != 202:
            outcome.end, outcome.code = End.REFUSED, _error_code(answer)
            return
        outcome.job_id = answer.json()["id"]
        while True:
            await asyncio.sleep(_POLL_S)
            try:
                answer = await self._http.get(f"{self._any_url()}/jobs/{outcome.job_id}")
            except httpx.TransportError:
                continue  # the gateway is away; the job is not
            if answer.status_code == 404:
                outcome.end, outcome.code = End.GONE, "gone"
                return
            if answer.status_code == 200 and look.job(answer.json()):
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


class _Look:
    """Notes in an outcome what a client reads."""

    def __init__(self, outcome: Outcome) -> None:
        self.outcome = outcome
        outcome.last_token = outcome.began

    def token(self) -> None:
        """One has come."""
        now = time.monotonic()
        outcome = self.outcome
        outcome.longest_silence_s = max(outcome.longest_silence_s, now - outcome.last_token)
        outcome.last_token = now

    def end(self) -> None:
        """No more will come."""
        outcome = self.outcome
        outcome.ended = time.monotonic()
        silence_s = outcome.ended - outcome.last_token
        outcome.longest_silence_s = max(outcome.longest_silence_s, silence_s)

    def event(self, data: str) -> None:
        """An event of a stream."""
        outcome = self.outcome
        if data == "[DONE]":
            outcome.end = End.WHOLE if outcome.finish_reason else End.CUT
            return
        try:
            event = json.loads(data)
        except ValueError:
            outcome.differences.append(f"an event is no JSON: {data[:80]!r}")
            return
        if "error" in event:
            outcome.end, outcome.code = End.FAILED, str(event["error"].get("code"))
            return
        for choice in event.get("choices", ()):
            content = choice["delta"].get("content")
            if content:
                outcome.text += content
                self.token()
            outcome.finish_reason = choice["finish_reason"] or outcome.finish_reason

    def job(self, job: Json) -> bool:
        """A job's record; has it ended?"""
        outcome = self.outcome
        text = job.get("text") or ""
        if text != outcome.text:
            self.token()
            outcome.text = text
        if job["state"] in ("queued", "in_progress"):
            return False
        # A record that has lost its text says so.
        lost = job.get("text", "") is None
        outcome.end = End.WHOLE if job["state"] == "completed" and not lost else End.FAILED
        if outcome.end is End.FAILED:
            outcome.code = str((job.get("error") or {}).get("code", job["state"]))
        if outcome.whole and "result" in job:
            whole = job["result"]["choices"][0]["message"]["content"]
            if whole != text:
                outcome.differences.append("the job's result and its text differ")
        return True


def _error_code(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"]["code"])
    except (ValueError, KeyError, TypeError):
        return str(answer.status_code)

"""Clients of all kinds at once, each of which checks its answer against the expected text.

`python -m load_tests.clients.mixed_client SPEC RESULT`: two JSON files, `MixedSpec` (read) and
`MixedResult` (written).

The simulated engine's answer is a function of the request, so each client computes the text that it
must get: a token that is missing, doubled or another request's is detected.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import httpx
import uvloop

from load_tests.clients.expected_text import expected_text
from load_tests.clients.token_difference import find_difference, tokens_of
from load_tests.harness.errors import WrongAnswerError
from load_tests.systems.engine import CHAT_PATH, MODEL

MIX = {
    "stream": 40,
    "call": 25,
    "poll_job": 10,
    "follow_events": 5,
    "disconnect": 10,
    "time_out": 5,
    "cancel_job": 5,
}
"""Methods of `MixedClient`, each one kind of client, and how many of a hundred clients call it."""

_TIMEOUT_S = 60.0
_SHORT, _MEDIUM, _LONG = (1, 8), (8, 64), (2000, 2001)
"""Tokens of an answer (from, below); no client reads a long one to its end."""
_CLIENT_TIMEOUT_S = (0.1, 1.0)
_MAX_REASON = 300
"""Characters."""

Headers = dict[str, str]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MixedSpec:
    """How many clients come, and as whom."""

    url: str
    api_keys: list[str]
    """One per tenant."""
    seconds: float
    """How long new clients start; all are then awaited."""
    rate: float
    """New clients a second, at the times of a Poisson process."""
    seed: int = 1


@dataclass(slots=True)
class MixedResult:
    """What all clients got."""

    right: dict[str, int] = field(default_factory=dict)
    """Clients whose checks all passed, by kind."""
    wrong: dict[str, int] = field(default_factory=dict)
    """The others, by kind and reason."""
    tokens: int = 0
    """Tokens of the answers that were read to their end and right."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """CPU seconds of the process of the clients."""


class MixedClient:
    """Runs one MixedSpec."""

    def __init__(self, spec: MixedSpec, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` replaces the network in tests."""
        self._spec = spec
        self._draw = random.Random(spec.seed)
        self._result = MixedResult()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.AsyncClient(
            base_url=spec.url, timeout=_TIMEOUT_S, limits=limits, transport=transport
        )

    async def run(self) -> MixedResult:
        """Start all clients and wait until each has ended."""
        began, cpu_s = time.monotonic(), time.process_time()
        due = began
        async with self._http, asyncio.TaskGroup() as clients:
            while due < began + self._spec.seconds:
                await asyncio.sleep(due - time.monotonic())
                clients.create_task(self._client())
                due += self._draw.expovariate(self._spec.rate)
        self._result.seconds = time.monotonic() - began
        self._result.cpu_s = time.process_time() - cpu_s
        return self._result

    async def _client(self) -> None:
        (kind,) = self._draw.choices(list(MIX), list(MIX.values()))
        headers = {"authorization": f"Bearer {self._draw.choice(self._spec.api_keys)}"}
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await getattr(self, kind)(headers)
        except Exception as error:
            reason = f"{kind}: {error!r}"[:_MAX_REASON]
            self._result.wrong[reason] = self._result.wrong.get(reason, 0) + 1
            print(time.strftime("%X"), reason, file=sys.stderr, flush=True)
        else:
            self._result.right[kind] = self._result.right.get(kind, 0) + 1

    async def stream(self, headers: Headers) -> None:
        """Read a streamed answer to its end."""
        body = self._body(_MEDIUM, stream=True)
        text, ends = "", []
        async for data in self._read("POST", CHAT_PATH, headers, body):
            if data == "[DONE]":
                ends.append(data)
                continue
            (choice,) = json.loads(data)["choices"]
            text += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                ends.append(choice["finish_reason"])
        await self._check(text, body)
        if ends not in (["stop", "[DONE]"], ["length", "[DONE]"]):
            raise WrongAnswerError(f"the stream ends with {ends}")

    async def call(self, headers: Headers) -> None:
        """Get a short answer that is not streamed."""
        body = self._body(_SHORT)
        answer = _checked_json(await self._http.post(CHAT_PATH, json=body, headers=headers))
        await self._check(answer["choices"][0]["message"]["content"], body)

    async def poll_job(self, headers: Headers) -> None:
        """Submit a job and poll it until it has ended."""
        body = self._body(_MEDIUM)
        path = await self._submit(headers, body)
        job: Json = {"state": "queued"}
        while job["state"] in ("queued", "in_progress"):
            job = _checked_json(await self._http.get(path, params={"wait": 5}, headers=headers))
        if job["state"] != "completed":
            raise WrongAnswerError(f"the job is {job['state']}: {job['error']}")
        if job["text"] != job["result"]["choices"][0]["message"]["content"]:
            raise WrongAnswerError("the job's text and its result differ")
        await self._check(job["text"], body)

    async def follow_events(self, headers: Headers) -> None:
        """Submit a job and read its events as a stream."""
        body = self._body(_MEDIUM)
        path = await self._submit(headers, body)
        text, job = "", Json()
        async for data in self._read("GET", f"{path}/events", headers):
            event = json.loads(data)
            if "id" in event:
                job = event
            else:
                text += event["choices"][0]["text"]
        if job["state"] != "completed" or job["text"] != text:
            raise WrongAnswerError(f"the job is {job['state']}, its events contain {text!r}")
        await self._check(text, body)

    async def disconnect(self, headers: Headers) -> None:
        """Close the connection after a few chunks of a long stream."""
        body = self._body(_LONG, stream=True, ignore_eos=True)
        chunks, text = self._draw.randrange(1, 20), ""
        async with aclosing(self._read("POST", CHAT_PATH, headers, body)) as events:
            async for data in events:
                text += json.loads(data)["choices"][0]["delta"].get("content") or ""
                chunks -= 1
                if not chunks:
                    break
        _compare(text, await expected_text(body), complete=False)

    async def time_out(self, headers: Headers) -> None:
        """Close the connection before a long answer that is not streamed arrives."""
        body = self._body(_LONG, ignore_eos=True)
        try:
            async with asyncio.timeout(self._draw.uniform(*_CLIENT_TIMEOUT_S)):
                _checked_json(await self._http.post(CHAT_PATH, json=body, headers=headers))
        except TimeoutError:
            return
        raise WrongAnswerError("a long answer arrived too early")

    async def cancel_job(self, headers: Headers) -> None:
        """Submit a long job and cancel it."""
        body = self._body(_LONG, ignore_eos=True)
        path = await self._submit(headers, body)
        await asyncio.sleep(self._draw.uniform(*_CLIENT_TIMEOUT_S))
        job = _checked_json(await self._http.post(f"{path}/cancel", headers=headers))
        if job["state"] != "cancelled":
            raise WrongAnswerError(f"the job is {job['state']}")
        _compare(job["text"], await expected_text(body), complete=False)

    def _body(self, tokens: tuple[int, int], **fields: Any) -> Json:
        words = " ".join(["Say it again."] * self._draw.randrange(1, 60))
        return {
            "model": MODEL,
            "messages": [{"role": "user", "content": f"{self._draw.getrandbits(64):x} {words}"}],
            "max_tokens": self._draw.randrange(*tokens),
            "seed": self._draw.randrange(1000),
            **fields,
        }

    async def _submit(self, headers: Headers, body: Json) -> str:
        wanted = {"endpoint": CHAT_PATH, "body": body}
        response = await self._http.post("/jobs", json=wanted, headers=headers)
        _checked_json(response, 202)
        return response.headers["location"]

    async def _read(
        self, method: str, path: str, headers: Headers, body: Json | None = None
    ) -> AsyncGenerator[str, None]:
        """Yield the data of each event of a stream."""
        async with self._http.stream(method, path, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise WrongAnswerError(f"status {response.status_code}: {await response.aread()!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    async def _check(self, text: str, body: Json) -> None:
        _compare(text, await expected_text(body), complete=True)
        self._result.tokens += len(text.split())


def _checked_json(response: httpx.Response, status: int = 200) -> Json:
    if response.status_code != status:
        raise WrongAnswerError(f"status {response.status_code}: {response.text}")
    answer: Json = response.json()
    return answer


def _compare(text: str, expected: str, *, complete: bool) -> None:
    """Raise WrongAnswerError if the text differs; one that is not `complete` may end early."""
    difference = find_difference(tokens_of(text), tokens_of(expected), complete=complete)
    if difference is not None:
        raise WrongAnswerError(str(difference))


def main() -> None:
    """Run the spec of the first file; write the result into the second."""
    spec, result = map(Path, sys.argv[1:])
    client = MixedClient(MixedSpec(**json.loads(spec.read_text())))
    found = uvloop.run(client.run())
    result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

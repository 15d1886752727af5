"""All kinds of clients at once, each of which knows what it must get.

`python -m load_tests.clients.mixed_client SPEC RESULT`: two files in JSON, `MixedSpec` and `MixedResult`.

The simulated engine's answer is a function of the request, so every client compares what it got
with the text that it computes itself: a token that is missing, doubled or somebody else's is found.
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

from load_tests.systems.engine import MODEL
from worker.engines.simulated.batch import Generation
from worker.engines.simulated.request import ChatBody, sampling

CHAT = "/v1/chat/completions"
MIX = {"stream": 40, "plain": 25, "job": 10, "follow": 5, "leave": 10, "give_up": 5, "cancel": 5}
"""Methods of `MixedClient`: what one client does, and how many in a hundred do it."""

_TIMEOUT_S = 60.0
_SHORT, _USUAL, _ENDLESS = (1, 8), (8, 64), (2000, 2001)
"""Tokens of an answer; nobody waits for the end of the last."""
_PATIENCE_S = (0.1, 1.0)
_SHOWN = 300

Headers = dict[str, str]
Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class MixedSpec:
    """What the clients do."""

    url: str
    api_keys: list[str]
    """Each is a tenant."""
    seconds: float
    """In which clients come; they are waited for."""
    rate: float
    """Clients a second, at the times of a Poisson process."""
    seed: int = 1


@dataclass(slots=True)
class MixedResult:
    """What they saw."""

    right: dict[str, int] = field(default_factory=dict)
    """By kind of client."""
    wrong: dict[str, int] = field(default_factory=dict)
    """By kind of client and reason."""
    tokens: int = 0
    """In right answers that were read to their end."""
    seconds: float = 0.0
    cpu_s: float = 0.0
    """The clients' own."""


class Wrong(Exception):
    """An answer is not what it must be."""


async def expected(body: Json) -> str:
    """What the simulated engine says to a chat request."""
    asked = ChatBody.model_validate(body)
    generation = Generation(stream=False, journal=None)
    generation.add(0, asked.prompt(), sampling(asked, None), asked.max_tokens or 1)
    (sequence,) = generation.sequences
    while sequence.finish_reason is None:
        sequence.advance()
    return "".join(delta.text for delta in await generation.next_deltas())


class MixedClient:
    """Runs one spec."""

    def __init__(self, spec: MixedSpec, transport: httpx.AsyncBaseTransport | None = None) -> None:
        """`transport` replaces the network."""
        self._spec = spec
        self._draw = random.Random(spec.seed)
        self._result = MixedResult()
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=32)
        self._http = httpx.AsyncClient(
            base_url=spec.url, timeout=_TIMEOUT_S, limits=limits, transport=transport
        )

    async def run(self) -> MixedResult:
        """Returns when all have ended."""
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
            reason = f"{kind}: {error!r}"[:_SHOWN]
            self._result.wrong[reason] = self._result.wrong.get(reason, 0) + 1
            print(time.strftime("%X"), reason, file=sys.stderr, flush=True)
        else:
            self._result.right[kind] = self._result.right.get(kind, 0) + 1

    # --- what clients do ---

    async def stream(self, headers: Headers) -> None:
        """Reads a stream to its end."""
        body = self._body(_USUAL, stream=True)
        text, ends = "", []
        async for data in self._read("POST", CHAT, headers, body):
            if data == "[DONE]":
                ends.append(data)
                continue
            (choice,) = json.loads(data)["choices"]
            text += choice["delta"].get("content") or ""
            if choice["finish_reason"]:
                ends.append(choice["finish_reason"])
        await self._check(text, body)
        if ends not in (["stop", "[DONE]"], ["length", "[DONE]"]):
            raise Wrong(f"the stream ends with {ends}")

    async def plain(self, headers: Headers) -> None:
        """Gets a short answer in one piece."""
        body = self._body(_SHORT)
        answer = _ok(await self._http.post(CHAT, json=body, headers=headers))
        await self._check(answer["choices"][0]["message"]["content"], body)

    async def job(self, headers: Headers) -> None:
        """Submits a job and polls it."""
        body = self._body(_USUAL)
        path = await self._submit(headers, body)
        job: Json = {"state": "queued"}
        while job["state"] in ("queued", "in_progress"):
            job = _ok(await self._http.get(path, params={"wait": 5}, headers=headers))
        if job["state"] != "completed":
            raise Wrong(f"the job is {job['state']}: {job['error']}")
        if job["text"] != job["result"]["choices"][0]["message"]["content"]:
            raise Wrong("the job's journal and its result differ")
        await self._check(job["text"], body)

    async def follow(self, headers: Headers) -> None:
        """Submits a job and reads its events."""
        body = self._body(_USUAL)
        path = await self._submit(headers, body)
        text, job = "", Json()
        async for data in self._read("GET", f"{path}/events", headers):
            event = json.loads(data)
            if "id" in event:
                job = event
            else:
                text += event["choices"][0]["text"]
        if job["state"] != "completed" or job["text"] != text:
            raise Wrong(f"the job is {job['state']}, its events say {text!r}")
        await self._check(text, body)

    async def leave(self, headers: Headers) -> None:
        """Reads a few chunks of a long stream."""
        body = self._body(_ENDLESS, stream=True, ignore_eos=True)
        chunks, text = self._draw.randrange(1, 20), ""
        async with aclosing(self._read("POST", CHAT, headers, body)) as events:
            async for data in events:
                text += json.loads(data)["choices"][0]["delta"].get("content") or ""
                chunks -= 1
                if not chunks:
                    break
        _check_beginning(text, await expected(body))

    async def give_up(self, headers: Headers) -> None:
        """Leaves before a long answer in one piece has come."""
        body = self._body(_ENDLESS, ignore_eos=True)
        try:
            async with asyncio.timeout(self._draw.uniform(*_PATIENCE_S)):
                _ok(await self._http.post(CHAT, json=body, headers=headers))
        except TimeoutError:
            return
        raise Wrong("the answer came too soon")

    async def cancel(self, headers: Headers) -> None:
        """Submits a long job and cancels it."""
        body = self._body(_ENDLESS, ignore_eos=True)
        path = await self._submit(headers, body)
        await asyncio.sleep(self._draw.uniform(*_PATIENCE_S))
        job = _ok(await self._http.post(f"{path}/cancel", headers=headers))
        if job["state"] != "cancelled":
            raise Wrong(f"the job is {job['state']}")
        _check_beginning(job["text"], await expected(body))

    # --- what they have in common ---

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
        wanted = {"endpoint": CHAT, "body": body}
        response = await self._http.post("/jobs", json=wanted, headers=headers)
        _ok(response, 202)
        return response.headers["location"]

    async def _read(
        self, method: str, path: str, headers: Headers, body: Json | None = None
    ) -> AsyncGenerator[str, None]:
        """The data of an answer's events."""
        async with self._http.stream(method, path, json=body, headers=headers) as response:
            if response.status_code != 200:
                raise Wrong(f"status {response.status_code}: {await response.aread()!r}")
            async for line in response.aiter_lines():
                if line.startswith("data: "):
                    yield line.removeprefix("data: ")

    async def _check(self, text: str, body: Json) -> None:
        whole = await expected(body)
        if text != whole:
            raise Wrong(difference(text, whole))
        self._result.tokens += len(text.split())


def _ok(response: httpx.Response, status: int = 200) -> Json:
    if response.status_code != status:
        raise Wrong(f"status {response.status_code}: {response.text}")
    answer: Json = response.json()
    return answer


def _check_beginning(text: str, whole: str) -> None:
    if not whole.startswith(text):
        raise Wrong(difference(text, whole))


def difference(text: str, whole: str) -> str:
    """Where a text leaves the right one."""
    found, right = text.split(" "), whole.split(" ")
    n = next((i for i, (a, b) in enumerate(zip(found, right, strict=False)) if a != b), -1)
    if n < 0:
        n = min(len(found), len(right))
    return (
        f"token {n + 1} is {found[n : n + 3]} instead of {right[n : n + 3]}, "
        f"of {len(found)} instead of {len(right)}"
    )


def main() -> None:
    spec, result = map(Path, sys.argv[1:])
    client = MixedClient(MixedSpec(**json.loads(spec.read_text())))
    found = uvloop.run(client.run())
    result.write_text(json.dumps(asdict(found)))


if __name__ == "__main__":
    main()

"""Clients of a rolling restart: plain streamed calls, each compared with its undisturbed answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

_DATA = "data: "
_DONE = "[DONE]"


@dataclass(slots=True)
class StreamedCall:
    """One streamed call, as its client observed it."""

    prompt: str
    text: str = ""
    arrivals: list[float] = field(default_factory=list)
    """When each chunk came, on the monotonic clock."""
    problem: str = ""
    """Why it did not end with `[DONE]`; empty if it did."""

    @property
    def pause_s(self) -> float:
        """The longest time between two chunks."""
        pairs = zip(self.arrivals, self.arrivals[1:], strict=False)
        return max((after - before for before, after in pairs), default=0.0)


def request_body(model: str, prompt: str, tokens: int) -> dict[str, Any]:
    """A greedy chat completion of exactly `tokens` tokens: it has one right answer."""
    return {
        "model": model,
        "messages": [{"role": "user", "content": prompt}],
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
    }


class Clients:
    """Clients that stream one answer after the other. They never retry and never resume."""

    def __init__(self, url: str, model: str, tokens: int) -> None:
        self.calls: list[StreamedCall] = []
        self._url, self._model, self._tokens = url, model, tokens
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
        self._http = httpx.AsyncClient(timeout=120, limits=limits)
        self._stopping = False

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    def stop(self) -> None:
        """Begin no more calls."""
        self._stopping = True

    async def loop(self, prompts: Sequence[str]) -> None:
        """Ask for these prompts in turn until `stop`."""
        n = 0
        while not self._stopping:
            await self.call(prompts[n % len(prompts)])
            n += 1

    async def call(self, prompt: str) -> StreamedCall:
        """Make one call; what the server does wrong is its `problem`."""
        call = StreamedCall(prompt)
        self.calls.append(call)
        body = request_body(self._model, prompt, self._tokens)
        path = f"{self._url}/v1/chat/completions"
        try:
            async with self._http.stream("POST", path, json=body) as answer:
                if answer.status_code != 200:
                    call.problem = f"status {answer.status_code}"
                    return call
                call.problem = "cut"
                async for line in answer.aiter_lines():
                    if line.startswith(_DATA):
                        _add(call, line.removeprefix(_DATA))
        except httpx.HTTPError as error:
            call.problem = type(error).__name__
        return call


def _add(call: StreamedCall, data: str) -> None:
    call.arrivals.append(time.monotonic())
    if data == _DONE:
        call.problem = "" if call.problem == "cut" else call.problem
        return
    chunk = json.loads(data)
    if "error" in chunk:
        call.problem = str(chunk["error"]["code"])
        return
    for choice in chunk["choices"]:
        call.text += choice["delta"].get("content") or ""


async def undisturbed(clients: Clients, prompts: Sequence[str]) -> Mapping[str, str]:
    """The right answer to each prompt, from a fleet that nothing happens to."""
    calls = await asyncio.gather(*map(clients.call, prompts))
    clients.calls.clear()
    for call in calls:
        if call.problem:
            raise RuntimeError(f"an undisturbed call failed: {call.problem}")
    return {call.prompt: call.text for call in calls}

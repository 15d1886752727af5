"""Clients that send one request after the other and note what comes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any

from load_tests.clients.gateways import Gateways
from load_tests.clients.request_client import send_request
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import Request
from load_tests.oracle.undisturbed import Expected

_AFTER_REFUSAL_S = 0.2
"""Pause after a refusal, so that clients do not fill the CPU with retries."""
_BETWEEN_S = 0.02
"""Between the first requests of two clients."""

Draw = Callable[[random.Random, str], Awaitable[tuple[Request, Expected]]]
"""Returns a request with this tag and the right answer to it."""


class ClientGroup:
    """Clients of one fleet. `on_end` is called with each request that has ended."""

    def __init__(
        self, gateways: Gateways, on_end: Callable[[Observation], None], *, timeout_s: float
    ) -> None:
        """`timeout_s` bounds a request."""
        self.open: dict[str, Observation] = {}
        """The requests that run, by tag."""
        self.gateways = gateways
        self._on_end = on_end
        self._timeout_s = timeout_s
        self._stopping = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, draw: Draw, *, clients: int, seed: object = 1) -> None:
        """Start clients, each of which sends one request after the other."""
        for n in range(clients):
            self._tasks.add(asyncio.create_task(self._loop(draw, n, seed)))

    async def arrive(self, draw: Draw, *, rate: float, seconds: float, seed: object = 1) -> None:
        """For some seconds start clients that send one request, at the times of a Poisson process.

        `rate`: clients a second.
        """
        rng = random.Random(f"{seed}")
        due, until, n = time.monotonic(), time.monotonic() + seconds, 0
        while due < until:
            await asyncio.sleep(due - time.monotonic())
            task = asyncio.create_task(self._draw_and_send(draw, rng, f"{seed}-{n}"))
            self._tasks.add(task)
            task.add_done_callback(self._ended)
            due, n = due + rng.expovariate(rate), n + 1

    async def stop(self) -> None:
        """Begin no new requests; wait until the last ones have ended. Raises what a client did."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    async def close(self) -> None:
        """End all clients at once, and close their connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.gateways.close()

    def check(self) -> None:
        """Raise the error of a client that has failed."""
        for task in tuple(self._tasks):
            if task.done():
                task.result()

    async def send(self, request: Request, expected: Expected) -> Observation:
        """Send one request and wait for its end; whatever the server does is noted."""
        seen = Observation(request, expected, began=time.monotonic())
        self.open[request.tag] = seen
        try:
            async with asyncio.timeout(self._timeout_s):
                await send_request(self.gateways, seen)
        except TimeoutError:
            seen.end = End.HUNG
        finally:
            del self.open[request.tag]
        seen.ended = time.monotonic()
        self.gateways.forget(seen.job_id)
        self._on_end(seen)
        return seen

    async def _loop(self, draw: Draw, n: int, seed: object) -> None:
        rng = random.Random(f"{seed}-{n}")
        await asyncio.sleep(_BETWEEN_S * n)
        count = 0
        while not self._stopping:
            seen = await self._draw_and_send(draw, rng, f"{seed}-{n}-{count}")
            count += 1
            if seen.end in (End.REFUSED, End.CUT):
                await asyncio.sleep(_AFTER_REFUSAL_S)

    async def _draw_and_send(self, draw: Draw, rng: random.Random, tag: str) -> Observation:
        return await self.send(*await draw(rng, tag))

    def _ended(self, task: asyncio.Task[Observation]) -> None:
        if task.cancelled() or task.exception() is None:
            self._tasks.discard(task)

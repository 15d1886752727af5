"""The clients of a run: each sends one request after the other and notes what comes."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable

from load_tests.faults.kills.call_client import call
from load_tests.faults.kills.http_client import Gateways
from load_tests.faults.kills.job_client import submit_and_read
from load_tests.faults.kills.observation import End, Observation
from load_tests.faults.kills.request_classes import Mode
from load_tests.faults.kills.request_source import RequestSource

_AFTER_REFUSAL_S = 0.2
"""Pause after a refusal, so that clients do not fill the CPU with retries."""


class KillClients:
    """A group of clients. `start` begins their loops, `stop` lets them end their last requests."""

    def __init__(
        self,
        gateways: Gateways,
        source: RequestSource,
        on_end: Callable[[Observation], None],
        *,
        seed: int,
        clients: int,
        timeout_s: float,
    ) -> None:
        """`on_end` is called with each request that has ended, `timeout_s` bounds a request."""
        self.open: dict[str, Observation] = {}
        """The requests that run, by tag."""
        self._gateways = gateways
        self._source = source
        self._on_end = on_end
        self._seed = seed
        self._clients = clients
        self._timeout_s = timeout_s
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start all clients."""
        self._tasks = [asyncio.create_task(self._loop(n)) for n in range(self._clients)]

    async def stop(self) -> None:
        """Begin no new requests; wait until the last ones have ended. Raises what a client did."""
        self._stopping = True
        await asyncio.gather(*self._tasks)

    def cancel(self) -> None:
        """End all clients at once."""
        for task in self._tasks:
            task.cancel()

    def check(self) -> None:
        """Raise the error of a client that has failed."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _loop(self, n: int) -> None:
        rng = random.Random(f"{self._seed}-{n}")
        await asyncio.sleep(0.02 * n)
        count = 0
        while not self._stopping:
            seen = await self._request(f"{self._seed}-{n}-{count}", rng)
            count += 1
            self._on_end(seen)
            if seen.end is End.REFUSED:
                await asyncio.sleep(_AFTER_REFUSAL_S)

    async def _request(self, tag: str, rng: random.Random) -> Observation:
        request, expected = await self._source.draw(rng, tag)
        seen = Observation(request, expected, began=time.monotonic())
        self.open[tag] = seen
        try:
            async with asyncio.timeout(self._timeout_s):
                if request.mode is Mode.CALL:
                    await call(self._gateways, seen)
                else:
                    await submit_and_read(self._gateways, seen, random.Random(tag))
        except TimeoutError:
            seen.end = End.HUNG
        finally:
            del self.open[tag]
        seen.ended = time.monotonic()
        self._gateways.forget(seen.job_id)
        return seen

"""Sends the requests of a benchmark and collects their outcomes."""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Iterable
from dataclasses import dataclass, field

import aiohttp

from gateway.bench.call import Target
from gateway.bench.outcome import Outcome
from gateway.bench.prompts import Prompt

_CONNECT_S = 10.0


@dataclass(frozen=True, slots=True)
class Planned:
    """A request that is to be sent."""

    due_s: float
    """Seconds after the start."""
    prompt: Prompt


@dataclass(slots=True)
class Run:
    """A running or ended benchmark."""

    outcomes: list[Outcome] = field(default_factory=list)
    """Of the requests that have ended."""
    open: int = 0
    duration_s: float = 0.0
    interrupted: bool = False


class Load:
    """A list of requests and how many of them may be open at once."""

    def __init__(
        self,
        target: Target,
        plan: Iterable[Planned],
        *,
        max_concurrency: int | None = None,
        seconds: float | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """`seconds`: after this time nothing more is sent; `timeout_s`: of one request."""
        self.run = Run()
        self._target = target
        self._plan = plan
        self._seconds = float("inf") if seconds is None else seconds
        self._timeout_s = timeout_s
        self._free = asyncio.Semaphore(max_concurrency) if max_concurrency else None

    async def execute(self) -> Run:
        """Send everything and wait for the answers. When cancelled, close what is open."""
        gc.collect()
        gc.freeze()  # a full collection would be measured as a server's pause
        run, began = self.run, time.perf_counter()
        try:
            async with session(self._timeout_s) as connections, asyncio.TaskGroup() as tasks:
                await self._send_all(connections, tasks, began)
        except asyncio.CancelledError:
            run.interrupted = True
            task = asyncio.current_task()
            if task is not None:
                task.uncancel()
        finally:
            gc.unfreeze()
            run.duration_s = time.perf_counter() - began
        return run

    async def _send_all(
        self, connections: aiohttp.ClientSession, tasks: asyncio.TaskGroup, began: float
    ) -> None:
        for planned in self._plan:
            due = began + planned.due_s
            if (wait_s := due - time.perf_counter()) > 0:
                await asyncio.sleep(wait_s)
            if self._free:
                await self._free.acquire()
            if time.perf_counter() - began > self._seconds:
                return
            self.run.open += 1
            tasks.create_task(self._send(connections, planned.prompt, due))

    async def _send(self, connections: aiohttp.ClientSession, prompt: Prompt, due: float) -> None:
        try:
            outcome = await self._target.call(connections, prompt)
            outcome.client_queue_time = max(0.0, outcome.started - due)
            self.run.outcomes.append(outcome)
        finally:
            self.run.open -= 1
            if self._free:
                self._free.release()


def session(timeout_s: float | None = None) -> aiohttp.ClientSession:
    """HTTP connections, as many as there are requests; `timeout_s` limits each request."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
        timeout=aiohttp.ClientTimeout(total=timeout_s, sock_connect=_CONNECT_S),
        trust_env=True,
    )

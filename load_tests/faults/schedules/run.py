"""Runs one schedule of pauses on a fleet and checks every answer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from load_tests.faults.call_outcome import CallOutcome
from load_tests.faults.clients import Clients
from load_tests.faults.fleet import FaultFleet, send
from load_tests.faults.schedules.schedule import Pause, PauseSchedule, PauseTarget
from load_tests.harness.processes import Process

_TOKENS_DEADLINE_S = 5.0
"""How long to wait for the tokens that a schedule requires; then it continues without them."""


class ScheduleRun:
    """One run of a schedule; the fleet and the clients serve several runs."""

    def __init__(
        self, fleet: FaultFleet, clients: Clients, schedule: PauseSchedule, tag: str
    ) -> None:
        self._fleet = fleet
        self._clients = clients
        self._schedule = schedule
        self._tag = tag
        self._calls: list[asyncio.Task[CallOutcome]] = []
        self._streams: list[str] = []
        self.paused_at = 0.0
        """When the last pause began, on the monotonic clock."""

    async def play(self) -> list[CallOutcome]:
        """Run the schedule; return the outcomes of all calls, compared with their records."""
        schedule = self._schedule
        for n in range(schedule.streams):
            self._start_call(f"old-{n}")
        for n in range(schedule.jobs):
            self._start_call(f"job-{n}", stream=n % 2 == 0, job=True)
        await self._until(lambda: self._min_tokens() >= schedule.after)
        pauses: list[asyncio.Task[None]] = []
        try:
            for n, pause in enumerate(schedule.pauses):
                if pauses and not pause.overlaps:
                    await pauses[-1]
                if pause.wait_for_tokens:
                    before = self._tokens()
                    await self._until(lambda before=before: self._continued(before))  # type: ignore[misc]
                await asyncio.sleep(pause.gap_s)
                pauses.append(asyncio.create_task(self._pause(pause, n)))
            await asyncio.gather(*pauses)
        finally:
            for task in pauses:
                task.cancel()
            for process in self._processes():
                send(process, signal.SIGCONT)
        outcomes = list(await asyncio.gather(*self._calls))
        await self._clients.compare_records(outcomes)
        return outcomes

    async def _pause(self, pause: Pause, n: int) -> None:
        seconds = pause.seconds
        if pause.since_renewal:
            since = await asyncio.to_thread(self._fleet.since_renewal_s, pause.n)
            seconds = max(0.0, seconds - since)
        process = self._process(pause)
        self.paused_at = time.monotonic()
        until = self.paused_at + seconds
        send(process, signal.SIGSTOP)
        try:
            for k in range(pause.calls):
                self._start_call(f"new-{n}-{k}")
            await asyncio.sleep(until - time.monotonic())
        finally:
            send(process, signal.SIGCONT)

    def _process(self, pause: Pause) -> Process:
        if pause.target is PauseTarget.REDIS:
            return self._fleet.redis.process
        if pause.target is PauseTarget.GATEWAY:
            return self._fleet.gateways[0]
        return self._fleet.workers[pause.n]

    def _processes(self) -> list[Process]:
        return [*self._fleet.gateways, *self._fleet.workers, self._fleet.redis.process]

    def _start_call(self, name: str, *, stream: bool = True, job: bool = False) -> None:
        tag = f"{self._tag}-{name}"
        if not job:
            self._streams.append(tag)
        call = self._clients.call(tag, tokens=self._schedule.tokens, stream=stream, job=job)
        self._calls.append(asyncio.create_task(call))

    def _tokens(self) -> dict[str, int]:
        """Return the number of tokens of each open stream, by tag."""
        open_ = self._clients.open
        return {tag: open_[tag].text.count(" ") for tag in self._streams if tag in open_}

    def _min_tokens(self) -> int:
        n_open = len(self._tokens())
        return min(self._tokens().values(), default=0) if n_open == len(self._streams) else -1

    def _continued(self, before: dict[str, int]) -> bool:
        now = self._tokens()
        return all(now[tag] > tokens for tag, tokens in before.items() if tag in now)

    async def _until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _TOKENS_DEADLINE_S
        while not condition() and time.monotonic() < until:
            if any(task.done() for task in self._calls):
                return  # an answer has already ended
            await asyncio.sleep(0.002)

"""Plays a schedule on a fleet, and judges every answer."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

from load_tests.faults.clients import Clients
from load_tests.faults.fleet import Fleet, send
from load_tests.faults.outcome import Outcome
from load_tests.faults.schedules.schedule import Pause, Schedule, Target
from load_tests.harness.processes import Process

_BEGIN_S = 5.0
"""So long is waited for the tokens that a schedule asks for; then it goes on without them."""


class Round:
    """One schedule on a fleet that stays for the next one."""

    def __init__(self, fleet: Fleet, clients: Clients, schedule: Schedule, tag: str) -> None:
        self._fleet = fleet
        self._clients = clients
        self._schedule = schedule
        self._tag = tag
        self._asked: list[asyncio.Task[Outcome]] = []
        self._streams: list[str] = []
        self.last_pause = 0.0
        """When it began."""

    async def play(self) -> list[Outcome]:
        """Returns when every client has its answer or has lost patience, records compared."""
        schedule = self._schedule
        for n in range(schedule.streams):
            self._ask(f"old-{n}")
        for n in range(schedule.jobs):
            self._ask(f"job-{n}", stream=n % 2 == 0, job=True)
        await self._until(lambda: self._least_tokens() >= schedule.after)
        pauses: list[asyncio.Task[None]] = []
        try:
            for n, pause in enumerate(schedule.pauses):
                if pauses and not pause.overlaps:
                    await pauses[-1]
                if pause.wait_for_tokens:
                    before = self._tokens()
                    await self._until(lambda before=before: self._gone_on(before))  # type: ignore[misc]
                await asyncio.sleep(pause.gap_s)
                pauses.append(asyncio.create_task(self._pause(pause, n)))
            await asyncio.gather(*pauses)
        finally:
            for task in pauses:
                task.cancel()
            for process in self._all():
                send(process, signal.SIGCONT)
        outcomes = list(await asyncio.gather(*self._asked))
        await self._clients.compare_records(outcomes)
        return outcomes

    async def _pause(self, pause: Pause, n: int) -> None:
        seconds = pause.seconds
        if pause.since_renewal:
            since = await asyncio.to_thread(self._fleet.since_renewal_s, pause.n)
            seconds = max(0.0, seconds - since)
        process = self._process(pause)
        self.last_pause = time.monotonic()
        until = self.last_pause + seconds
        send(process, signal.SIGSTOP)
        try:
            for k in range(pause.calls):
                self._ask(f"new-{n}-{k}")
            await asyncio.sleep(until - time.monotonic())
        finally:
            send(process, signal.SIGCONT)

    def _process(self, pause: Pause) -> Process:
        if pause.target is Target.REDIS:
            return self._fleet.redis.process
        if pause.target is Target.GATEWAY:
            return self._fleet.gateways[0]
        return self._fleet.workers[pause.n]

    def _all(self) -> list[Process]:
        return [*self._fleet.gateways, *self._fleet.workers, self._fleet.redis.process]

    def _ask(self, name: str, *, stream: bool = True, job: bool = False) -> None:
        tag = f"{self._tag}-{name}"
        if not job:
            self._streams.append(tag)
        ask = self._clients.ask(tag, tokens=self._schedule.tokens, stream=stream, job=job)
        self._asked.append(asyncio.create_task(ask))

    def _tokens(self) -> dict[str, int]:
        """How many each open stream has."""
        open_ = self._clients.open
        return {tag: open_[tag].text.count(" ") for tag in self._streams if tag in open_}

    def _least_tokens(self) -> int:
        n_open = len(self._tokens())
        return min(self._tokens().values(), default=0) if n_open == len(self._streams) else -1

    def _gone_on(self, before: dict[str, int]) -> bool:
        now = self._tokens()
        return all(now[tag] > tokens for tag, tokens in before.items() if tag in now)

    async def _until(self, condition: Callable[[], bool]) -> None:
        until = time.monotonic() + _BEGIN_S
        while not condition() and time.monotonic() < until:
            if any(task.done() for task in self._asked):
                return  # too late: an answer has ended
            await asyncio.sleep(0.002)

"""Runs one schedule of pauses on a fleet; the trial checks every answer."""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable

from load_tests.clients.trial import Trial
from load_tests.faults.schedules.schedule import Pause, PauseSchedule, PauseTarget
from load_tests.oracle.observation import Observation
from load_tests.oracle.request_classes import Mode, chat, make_request
from tests.harness.processes import Process

_TOKENS_DEADLINE_S = 5.0
"""How long to wait for the tokens that a schedule requires; then it continues without them."""


class ScheduleRun:
    """One run of a schedule; the trial serves several runs."""

    def __init__(self, trial: Trial, schedule: PauseSchedule, tag: str) -> None:
        self._trial = trial
        self._fleet = trial.fleet
        self._schedule = schedule
        self._tag = tag
        self._calls: list[asyncio.Task[Observation]] = []
        self._streams: list[str] = []

    async def play(self) -> None:
        """Run the schedule; return when all calls have ended and their records were read."""
        schedule = self._schedule
        for n in range(schedule.streams):
            await self._start_call(f"old-{n}", Mode.CALL)
        for n in range(schedule.jobs):
            await self._start_call(f"job-{n}", Mode.POLLED, stream=n % 2 == 0)
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
            for process in self._fleet.processes:
                process.popen.send_signal(signal.SIGCONT)
        await asyncio.gather(*self._calls)
        await self._trial.all_read()

    async def _pause(self, pause: Pause, n: int) -> None:
        seconds = pause.seconds
        if pause.since_renewal:
            since = await asyncio.to_thread(self._fleet.since_renewal_s, pause.n)
            seconds = max(0.0, seconds - since)
        process = self._process(pause).popen
        until = time.monotonic() + seconds
        process.send_signal(signal.SIGSTOP)
        try:
            for k in range(pause.calls):
                await self._start_call(f"new-{n}-{k}", Mode.CALL)
            await asyncio.sleep(until - time.monotonic())
        finally:
            process.send_signal(signal.SIGCONT)

    def _process(self, pause: Pause) -> Process:
        if pause.target is PauseTarget.REDIS:
            return self._fleet.redis.process
        if pause.target is PauseTarget.GATEWAY:
            return self._fleet.gateways[0]
        return self._fleet.workers[pause.n]

    async def _start_call(self, name: str, mode: Mode, *, stream: bool = True) -> None:
        tag = f"{self._tag}-{name}"
        if mode is Mode.CALL:
            self._streams.append(tag)
        asked = chat(self._schedule.tokens, stream=stream)
        request = make_request(asked, random.Random(tag), tag, mode)
        call = self._trial.clients.send(*await self._trial.source.answered(request))
        self._calls.append(asyncio.create_task(call))

    def _tokens(self) -> dict[str, int]:
        """Return the number of tokens of each open stream, by tag."""
        open_ = self._trial.clients.open
        return {tag: len(open_[tag].at) for tag in self._streams if tag in open_}

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

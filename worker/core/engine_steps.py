"""How long an engine may make no step before it counts as hung, and whether it has taken longer.

No hang: the first steps after the start, which compile, the prefill of a prompt that is longer than
any before it, whose time is not known, and the time of an operator's call.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from worker.core.claim import Room
from worker.core.job_run import JobRun
from worker.core.output import Output
from worker.core.runs import Runs
from worker.engines.interface import Engine

SHORTEST_S = 30.0
TIMES_LONGEST = 20
"""An engine may take so many times as long as its longest step of late."""
WARM_UP_STEPS = 50
LONGER_PROMPT = 2
"""A prompt so many times as long as any that was answered may take any time."""
SHORT_PROMPT = 64
"""Tokens of a prompt that is short on every machine."""
_OF_LATE = 500
"""Steps; the longest one is that of the last 500 to 1,000."""
_ENTERING_S = 1.0
"""A job that began so long after the last step is not in the one that hangs."""
_BETWEEN_LOOKS_S = 1.0
"""A longer time between two looks means that the worker itself stood still: it does not count."""


def stall_limit_s(
    most_s: float,
    *,
    n_steps: int,
    longest_s: float,
    prompt_tokens: int = 0,
    answered_tokens: int = 0,
    paused: bool = False,
) -> float:
    """Seconds without a step after which the engine counts as hung, at most `most_s`.

    `n_steps`: since the start; `longest_s`: the longest of late. `prompt_tokens`: the longest
    prompt without output that may be in the step; `answered_tokens`: the longest prompt that has
    had output. `paused`: operators have paused the worker or put it to sleep.
    """
    known = max(SHORT_PROMPT, LONGER_PROMPT * answered_tokens)
    if n_steps < WARM_UP_STEPS or paused or prompt_tokens > known:
        return most_s
    return min(most_s, max(SHORTEST_S, TIMES_LONGEST * longest_s))


class EngineSteps:
    """When an engine makes steps, on the monotonic clock. `now` is the time of the call."""

    def __init__(self, now: float) -> None:
        self.n = 0
        self.last = now
        """When the last step ended, or the engine was seen idle."""
        self.stalled_s = 0.0
        """Time since then in which the worker itself ran, as of the last look."""
        self._looked = now
        self._longest_s = 0.0
        self._longest_before_s = 0.0

    @property
    def longest_s(self) -> float:
        """The longest step of late."""
        return max(self._longest_s, self._longest_before_s)

    def step(self, now: float) -> None:
        """The engine has ended a step."""
        took = min(now - self.last, self.stalled_s + _BETWEEN_LOOKS_S)
        self.n += 1
        if self.n % _OF_LATE == 0:
            self._longest_before_s, self._longest_s = self._longest_s, 0.0
        if took > self._longest_s:
            self._longest_s = took
        self.last, self.stalled_s = now, 0.0

    def look(self, now: float, *, idle: bool) -> None:
        """Update `stalled_s`. Call it several times a second; `idle`: the engine has no work."""
        if idle:
            self.last, self.stalled_s = now, 0.0
        else:
            self.stalled_s += min(now - max(self._looked, self.last), _BETWEEN_LOOKS_S)
        self._looked = now


class EngineProgress:
    """The steps of one engine, and whether they take longer than they may."""

    def __init__(self, engine: Engine, runs: Runs, room: Room) -> None:
        self._engine = engine
        self._runs = runs
        self._room = room
        self._steps = EngineSteps(time.monotonic())
        self._answered_tokens = 0
        self._operator_calls = 0

    def on_step(self) -> None:
        """The engine has ended a step."""
        self._steps.step(time.monotonic())

    @contextlib.contextmanager
    def operator_call(self) -> Iterator[None]:
        """The engine does what an operator asked for, and may make no step meanwhile."""
        self._operator_calls += 1
        try:
            yield
        finally:
            self._operator_calls -= 1
            self._steps.look(time.monotonic(), idle=True)

    def begins(self, run: JobRun) -> None:
        """A run begins, which is not among the others yet."""
        if not self._runs and self._engine.load().unfinished == 0:
            self._steps.look(run.started, idle=True)  # the time until now belongs to no step

    def ended(self, run: JobRun) -> None:
        """A run has ended."""
        self._answered(run.output)

    def _answered(self, output: Output) -> None:
        """Remember the length of a job's prompt if it has had output."""
        if output.first_output_at is not None:
            self._answered_tokens = max(self._answered_tokens, output.prompt_tokens)

    def progressing(self, most_s: float) -> bool:
        """Whether the engine is idle, makes steps, or does what an operator asked for.

        `most_s`: see `stall_limit_s`. Call it several times a second.
        """
        steps = self._steps
        idle = bool(self._operator_calls) or self._engine.load().unfinished == 0
        steps.look(time.monotonic(), idle=idle)
        if steps.stalled_s < min(SHORTEST_S, most_s):
            return True
        return steps.stalled_s < self._limit_s(most_s)

    def _limit_s(self, most_s: float) -> float:
        in_step = self._steps.last + _ENTERING_S
        waiting = [
            run.output.prompt_tokens
            for run in self._runs.values()
            if run.output.first_output_at is None and run.started < in_step
        ]
        for run in self._runs.values():
            self._answered(run.output)
        return stall_limit_s(
            most_s,
            n_steps=self._steps.n,
            longest_s=self._steps.longest_s,
            prompt_tokens=max(waiting, default=0),
            answered_tokens=self._answered_tokens,
            paused=bool(self._room.paused),
        )

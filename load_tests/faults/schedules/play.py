"""Runs rounds of schedules: drawn from a seed, or one fixed schedule repeated."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from load_tests.clients.trial import Trial
from load_tests.faults.checked_call import CheckedCall
from load_tests.faults.schedules.run import ScheduleRun
from load_tests.faults.schedules.schedule import PauseSchedule, draw, lost_lease, silent_redis
from load_tests.harness.fleet import FleetShape
from load_tests.harness.leftovers import leftovers
from load_tests.harness.session import Progress
from load_tests.oracle.observation import End
from load_tests.oracle.request_source import RequestSource

LEASE_S = 0.9
STEP_MS = 2.5
"""After a pause of 0.83 of a lease 60 steps are left of it; a worker's step log keeps 36."""
FIXED_LEASE_S = 1.5
FIXED = {"lost-lease": lost_lease, "silent-redis": silent_redis}
"""Schedules after which clients once got wrong answers as complete ones."""
_TIMEOUT_S = 25.0


@dataclass(frozen=True, slots=True)
class Round:
    """What happened in one round."""

    name: str
    schedule: PauseSchedule
    calls: Sequence[CheckedCall]

    def described(self, lines: Sequence[str]) -> list[str]:
        """Return one text that has these lines; empty without lines."""
        return ["\n    ".join([f"{self.name}: {self.schedule}", *lines])] if lines else []

    @property
    def wrong(self) -> list[str]:
        """A line per wrong answer."""
        return [str(call) for call in self.calls if call.errors]

    @property
    def hung(self) -> list[str]:
        """A line per call that had not ended at the client's time limit."""
        hung = [call.seen for call in self.calls if call.seen.end is End.HUNG]
        return [f"{seen.request.tag} had {len(seen.at)} tokens" for seen in hung]


@dataclass(slots=True)
class ScheduleResults:
    """What all rounds found."""

    rounds: list[Round] = field(default_factory=list)
    leftovers: Counter[str] = field(default_factory=Counter)
    """What jobs left in Redis."""

    @property
    def calls(self) -> list[CheckedCall]:
        """The calls of all rounds."""
        return [call for each in self.rounds for call in each.calls]

    @property
    def failures(self) -> list[str]:
        """One text per round with a wrong answer: its name, its schedule, what was wrong."""
        return [text for each in self.rounds for text in each.described(each.wrong)]

    @property
    def hung(self) -> list[str]:
        """One text per round with a call that hung."""
        return [text for each in self.rounds for text in each.described(each.hung)]


async def play_drawn(
    folder: Path,
    *,
    seed: str,
    rounds: int,
    first: int = 0,
    workers: int = 2,
    fleets: int = 1,
    progress: Progress = print,
) -> ScheduleResults:
    """Run rounds that are drawn from the seed. Raises ProcessError.

    A round depends on the seed and its number alone, so that it can be repeated by itself. Several
    fleets share the rounds, as they mostly wait.
    """

    async def play(n_fleet: int) -> ScheduleResults:
        shape = FleetShape(workers, lease_s=LEASE_S, step_ms=STEP_MS)
        names = [f"{seed}-{n}" for n in range(first + n_fleet, first + rounds, fleets)]
        schedules = [(name, draw(name, LEASE_S, workers)) for name in names]
        return await _play(folder / str(n_fleet), shape, schedules, progress)

    total = ScheduleResults()
    for results in await asyncio.gather(*map(play, range(min(fleets, rounds)))):
        total.rounds += results.rounds
        total.leftovers += results.leftovers
    return total


async def play_fixed(
    name: str, folder: Path, *, rounds: int, progress: Progress = print
) -> ScheduleResults:
    """Run one of FIXED on a fleet with one worker and a tenth of the default lease."""
    shape = FleetShape(lease_s=FIXED_LEASE_S, step_ms=25 * FIXED_LEASE_S / 15)
    schedule = FIXED[name](FIXED_LEASE_S)
    schedules = [(f"{name}-{n}", schedule) for n in range(rounds)]
    return await _play(folder, shape, schedules, progress)


async def _play(
    folder: Path,
    shape: FleetShape,
    schedules: Sequence[tuple[str, PauseSchedule]],
    progress: Progress,
) -> ScheduleResults:
    results = ScheduleResults()
    calls: list[CheckedCall] = []
    trial = Trial(
        folder,
        shape,
        RequestSource([]),
        lambda seen, stored: calls.append(CheckedCall(seen, stored)),
        timeout_s=_TIMEOUT_S,
    )
    async with trial:
        for name, schedule in schedules:
            began = time.monotonic()
            await asyncio.to_thread(trial.fleet.wait_until_ready)
            run = ScheduleRun(trial, schedule, name)
            await run.play()
            played = Round(name, schedule, tuple(calls))
            results.rounds.append(played)
            complete = sum(call.seen.complete for call in calls)
            wrong = "".join(f"\n    WRONG {line}" for line in played.wrong)
            took_s = time.monotonic() - began
            progress(f"{name}: {took_s:.1f} s, {complete} of {len(calls)} complete{wrong}")
            calls.clear()
        results.leftovers.update(await asyncio.to_thread(leftovers, trial.fleet.client))
    return results

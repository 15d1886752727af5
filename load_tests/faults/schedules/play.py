"""Runs rounds of schedules: drawn from a seed, or one fixed schedule repeated."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
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


@dataclass(slots=True)
class ScheduleResults:
    """What all rounds found."""

    rounds: int = 0
    failures: list[str] = field(default_factory=list)
    """One text per round with a wrong answer: its name, its schedule, what was wrong."""
    hung: list[str] = field(default_factory=list)
    """One text per round with a call that had not ended at the client's time limit."""
    calls: list[CheckedCall] = field(default_factory=list)
    paused_at: list[float] = field(default_factory=list)
    """When the last pause of each round began, on the monotonic clock."""
    leftovers: Counter[str] = field(default_factory=Counter)
    """What jobs left in Redis."""

    @property
    def ends(self) -> Counter[str]:
        """Number of calls by how they ended."""
        return Counter(
            "complete" if call.seen.complete else call.seen.reason for call in self.calls
        )

    @property
    def wrong(self) -> int:
        """Wrong answers."""
        return sum(bool(call.errors) for call in self.calls)

    @property
    def records_behind(self) -> int:
        """Failed calls of which the client received more than the record has."""
        return sum(call.record_behind for call in self.calls)

    def merge(self, other: ScheduleResults) -> None:
        """Add the results of other rounds."""
        self.rounds += other.rounds
        self.failures += other.failures
        self.hung += other.hung
        self.calls += other.calls
        self.paused_at += other.paused_at
        self.leftovers += other.leftovers

    def add(self, name: str, schedule: PauseSchedule, calls: list[CheckedCall]) -> list[str]:
        """Add a round; return a line per wrong answer."""
        self.rounds += 1
        self.calls += calls
        hung = [
            f"{call.seen.request.tag} had {len(call.seen.at)} tokens"
            for call in calls
            if call.seen.end is End.HUNG
        ]
        if hung:
            self.hung.append(f"{name}: {schedule}\n    {'; '.join(hung)}")
        lines = [str(call) for call in calls if call.errors]
        if lines:
            self.failures.append("\n    ".join([f"{name}: {schedule}", *lines]))
        return lines


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
        total.merge(results)
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
    folder: Path, shape: FleetShape, schedules: list[tuple[str, PauseSchedule]], progress: Progress
) -> ScheduleResults:
    results = ScheduleResults()
    calls: list[CheckedCall] = []
    async with Trial(
        folder,
        shape,
        RequestSource([]),
        lambda seen, stored: calls.append(CheckedCall(seen, stored)),
        timeout_s=_TIMEOUT_S,
    ) as trial:
        for name, schedule in schedules:
            began = time.monotonic()
            await asyncio.to_thread(trial.fleet.wait_until_ready)
            run = ScheduleRun(trial, schedule, name)
            await run.play()
            results.paused_at.append(run.paused_at)
            wrong = results.add(name, schedule, calls)
            complete = sum(call.seen.complete for call in calls)
            progress(
                f"{name}: {time.monotonic() - began:.1f} s, {complete} of {len(calls)} complete"
                + "".join(f"\n    WRONG {line}" for line in wrong)
            )
            calls.clear()
        results.leftovers.update(await asyncio.to_thread(leftovers, trial.fleet.client))
    return results

"""Runs rounds of schedules: drawn from a seed, or one fixed schedule repeated."""

from __future__ import annotations

import asyncio
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

    failures: list[str] = field(default_factory=list)
    """One text for each round with a wrong answer: its name, its schedule, what was wrong."""
    leftovers: Counter[str] = field(default_factory=Counter)
    """What jobs left in Redis."""


async def play_drawn(folder: Path, *, seed: str, rounds: int, workers: int) -> ScheduleResults:
    """Run rounds that are drawn from the seed. Raises ProcessError.

    A round depends on the seed and its number alone, so that it can be repeated by itself.
    """
    shape = FleetShape(workers, lease_s=LEASE_S, step_ms=STEP_MS)
    names = [f"{seed}-{n}" for n in range(rounds)]
    return await _play(folder, shape, [(name, draw(name, LEASE_S, workers)) for name in names])


async def play_fixed(name: str, folder: Path) -> ScheduleResults:
    """Run one of FIXED on a fleet with one worker and a tenth of the default lease."""
    shape = FleetShape(lease_s=FIXED_LEASE_S, step_ms=25 * FIXED_LEASE_S / 15)
    return await _play(folder, shape, [(name, FIXED[name](FIXED_LEASE_S))])


async def _play(
    folder: Path, shape: FleetShape, schedules: Sequence[tuple[str, PauseSchedule]]
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
            await asyncio.to_thread(trial.fleet.wait_until_ready)
            run = ScheduleRun(trial, schedule, name)
            await run.play()
            wrong = [str(call) for call in calls if call.errors]
            complete = sum(call.seen.complete for call in calls)
            print(f"{name}: {complete} of {len(calls)} complete")
            if wrong:
                results.failures.append("\n    ".join([f"{name}: {schedule}", *wrong]))
            calls.clear()
        results.leftovers.update(await asyncio.to_thread(leftovers, trial.fleet.client))
    return results

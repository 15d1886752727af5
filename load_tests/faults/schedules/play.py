"""Runs many rounds of schedules: drawn from a seed, or one fixed schedule repeated."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from load_tests.clients.token_difference import tokens_of
from load_tests.faults.call_outcome import CallOutcome
from load_tests.faults.clients import Clients
from load_tests.faults.fleet import FaultFleet
from load_tests.faults.leftovers import leftovers
from load_tests.faults.schedules.run import ScheduleRun
from load_tests.faults.schedules.schedule import PauseSchedule, draw, lost_lease, silent_redis
from load_tests.harness.session import Progress

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
    ends: Counter[str] = field(default_factory=Counter)
    """Number of calls by how they ended."""
    failures: list[str] = field(default_factory=list)
    """One text per round with a wrong answer: its name, its schedule, what was wrong."""
    wrong: int = 0
    """Wrong answers."""
    hung: list[str] = field(default_factory=list)
    """One text per round with a call that had not ended at the client's time limit."""
    records_behind: int = 0
    """Failed calls of which the client received more tokens than the record has."""
    outcomes: list[CallOutcome] = field(default_factory=list)
    paused_at: list[float] = field(default_factory=list)
    """When the last pause of each round began, on the monotonic clock."""
    leftovers: dict[str, int] = field(default_factory=dict)
    """What jobs left in Redis."""

    def merge(self, other: ScheduleResults) -> None:
        """Add the results of other rounds."""
        self.rounds += other.rounds
        self.ends += other.ends
        self.failures += other.failures
        self.wrong += other.wrong
        self.hung += other.hung
        self.records_behind += other.records_behind
        self.outcomes += other.outcomes
        self.paused_at += other.paused_at
        for name, count in other.leftovers.items():
            self.leftovers[name] = self.leftovers.get(name, 0) + count

    def add(self, name: str, schedule: PauseSchedule, outcomes: list[CallOutcome]) -> list[str]:
        """Add a round; return a line per wrong answer."""
        self.rounds += 1
        self.outcomes += outcomes
        self.ends.update(o.reason if not o.complete else "complete" for o in outcomes)
        hung = [f"{o.request.tag} had {len(tokens_of(o.text))} tokens" for o in outcomes if o.hung]
        if hung:
            self.hung.append(f"{name}: {schedule}\n    {'; '.join(hung)}")
        wrong = [o for o in outcomes if o.errors]
        self.wrong += len(wrong)
        self.records_behind += sum(o.record_behind > 0 for o in outcomes)
        lines = [f"{o.request.tag} ({o.reason}): {'; '.join(o.errors)}" for o in wrong]
        if lines:
            self.failures.append(f"{name}: {schedule}\n    " + "\n    ".join(lines))
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
        fleet = await asyncio.to_thread(
            lambda: FaultFleet(
                folder / str(n_fleet), workers=workers, lease_s=LEASE_S, step_ms=STEP_MS
            )
        )
        names = [f"{seed}-{n}" for n in range(first + n_fleet, first + rounds, fleets)]
        return await _play(
            fleet, [(name, draw(name, LEASE_S, workers)) for name in names], progress
        )

    total = ScheduleResults()
    for results in await asyncio.gather(*map(play, range(min(fleets, rounds)))):
        total.merge(results)
    return total


async def play_fixed(
    name: str, folder: Path, *, rounds: int, progress: Progress = print
) -> ScheduleResults:
    """Run one of FIXED on a fleet with one worker and a tenth of the default lease."""
    step_ms = 25 * FIXED_LEASE_S / 15
    fleet = await asyncio.to_thread(
        lambda: FaultFleet(folder, workers=1, lease_s=FIXED_LEASE_S, step_ms=step_ms)
    )
    schedule = FIXED[name](FIXED_LEASE_S)
    return await _play(fleet, [(f"{name}-{n}", schedule) for n in range(rounds)], progress)


async def _play(
    fleet: FaultFleet, schedules: list[tuple[str, PauseSchedule]], progress: Progress
) -> ScheduleResults:
    results = ScheduleResults()
    clients = Clients(fleet.urls, timeout_s=_TIMEOUT_S)
    try:
        for name, schedule in schedules:
            began = time.monotonic()
            await asyncio.to_thread(fleet.wait_until_ready)
            run = ScheduleRun(fleet, clients, schedule, name)
            outcomes = await run.play()
            results.paused_at.append(run.paused_at)
            wrong = results.add(name, schedule, outcomes)
            complete = sum(o.complete for o in outcomes)
            progress(
                f"{name}: {time.monotonic() - began:.1f} s, {complete} of {len(outcomes)} complete"
                + "".join(f"\n    WRONG {line}" for line in wrong)
            )
        results.leftovers = await asyncio.to_thread(leftovers, fleet.client)
    finally:
        await clients.close()
        await asyncio.to_thread(fleet.close)
    return results

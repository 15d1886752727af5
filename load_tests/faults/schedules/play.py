"""Rounds of schedules that a seed draws, or of the given one."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from load_tests.clients.token_difference import words
from load_tests.faults.clients import Clients
from load_tests.faults.fleet import Fleet
from load_tests.faults.leftovers import leftovers
from load_tests.faults.outcome import Outcome
from load_tests.faults.schedules.run import Round
from load_tests.faults.schedules.schedule import Schedule, draw, lost_lease, silent_redis

LEASE_S = 0.9
STEP_MS = 2.5
"""After a pause of 0.83 of a lease 60 steps are left of it; a worker's step list keeps 36."""
GIVEN_LEASE_S = 1.5
GIVEN = {"lost-lease": lost_lease, "silent-redis": silent_redis}
"""Schedules that gave clients wrong answers as complete ones."""
_PATIENCE_S = 25.0


@dataclass(slots=True)
class Fuzz:
    """What all rounds have found."""

    rounds: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    """Answers by how they ended."""
    failures: list[str] = field(default_factory=list)
    """Each round with a wrong answer: what draws it again, what it was, what was wrong."""
    wrong: int = 0
    hung: list[str] = field(default_factory=list)
    """Each round with a client that was told nothing until its patience ended."""
    records_behind: int = 0
    """Answers that failed, of which the client got more than the record has."""
    outcomes: list[Outcome] = field(default_factory=list)
    strikes: list[float] = field(default_factory=list)
    """When the last pause of each round began."""
    left: dict[str, int] = field(default_factory=dict)

    def merge(self, other: Fuzz) -> None:
        """Add what another one has found."""
        self.rounds += other.rounds
        self.ends += other.ends
        self.failures += other.failures
        self.wrong += other.wrong
        self.hung += other.hung
        self.records_behind += other.records_behind
        self.outcomes += other.outcomes
        self.strikes += other.strikes
        for name, count in other.left.items():
            self.left[name] = self.left.get(name, 0) + count

    def add(self, name: str, schedule: Schedule, outcomes: list[Outcome]) -> list[str]:
        """Returns what is wrong with the round."""
        self.rounds += 1
        self.outcomes += outcomes
        self.ends.update(o.reason if not o.whole else "whole" for o in outcomes)
        hung = [f"{o.question.tag} had {len(words(o.text))} tokens" for o in outcomes if o.hung]
        if hung:
            self.hung.append(f"{name}: {schedule}\n    {'; '.join(hung)}")
        wrong = [o for o in outcomes if o.differences]
        self.wrong += len(wrong)
        self.records_behind += sum(o.record_behind > 0 for o in outcomes)
        lines = [f"{o.question.tag} ({o.reason}): {'; '.join(o.differences)}" for o in wrong]
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
    say: Callable[[str], None] = print,
) -> Fuzz:
    """Each round is drawn by seed and number alone, so that one can be repeated by itself.

    Several fleets share the rounds: most of the time they are stopped or wait.
    """

    async def play(n_fleet: int) -> Fuzz:
        fleet = await asyncio.to_thread(
            lambda: Fleet(folder / str(n_fleet), workers=workers, lease_s=LEASE_S, step_ms=STEP_MS)
        )
        names = [f"{seed}-{n}" for n in range(first + n_fleet, first + rounds, fleets)]
        return await _play(fleet, [(name, draw(name, LEASE_S, workers)) for name in names], say)

    total = Fuzz()
    for fuzz in await asyncio.gather(*map(play, range(min(fleets, rounds)))):
        total.merge(fuzz)
    return total


async def play_given(
    name: str, folder: Path, *, rounds: int, say: Callable[[str], None] = print
) -> Fuzz:
    """One of GIVEN on a fleet with one worker and a lease of a tenth of the usual one."""
    step_ms = 25 * GIVEN_LEASE_S / 15
    fleet = await asyncio.to_thread(
        lambda: Fleet(folder, workers=1, lease_s=GIVEN_LEASE_S, step_ms=step_ms)
    )
    schedule = GIVEN[name](GIVEN_LEASE_S)
    return await _play(fleet, [(f"{name}-{n}", schedule) for n in range(rounds)], say)


async def _play(
    fleet: Fleet, schedules: list[tuple[str, Schedule]], say: Callable[[str], None]
) -> Fuzz:
    fuzz = Fuzz()
    clients = Clients(fleet.urls, patience_s=_PATIENCE_S)
    try:
        for name, schedule in schedules:
            began = time.monotonic()
            await asyncio.to_thread(fleet.wait_until_ready)
            played = Round(fleet, clients, schedule, name)
            outcomes = await played.play()
            fuzz.strikes.append(played.last_pause)
            wrong = fuzz.add(name, schedule, outcomes)
            whole = sum(o.whole for o in outcomes)
            say(
                f"{name}: {time.monotonic() - began:.1f} s, {whole} of {len(outcomes)} whole"
                + "".join(f"\n    WRONG {line}" for line in wrong)
            )
        fuzz.left = await asyncio.to_thread(leftovers, fleet.client)
    finally:
        await clients.close()
        await asyncio.to_thread(fleet.close)
    return fuzz

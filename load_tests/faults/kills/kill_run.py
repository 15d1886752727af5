"""One run: a fleet, its clients, the kills, and the check of every answer and record."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from load_tests.clients.trial import Trial
from load_tests.faults.kills.kill_schedule import KillKind, PlannedKill, plan
from load_tests.faults.kills.killer import Killer
from load_tests.faults.kills.ledger_check import ledger_errors
from load_tests.faults.kills.pauses import DEFAULTS_LIMITS, PauseLimits
from load_tests.faults.kills.tally import Tally
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.leftovers import leftovers
from load_tests.harness.session import Progress
from load_tests.oracle.observation import Observation
from load_tests.oracle.request_source import RequestSource, VllmSource
from load_tests.oracle.stored_job import StoredJob
from shared.client.retries import Limits
from tests.harness.waiting import ProcessError

_KEPT = {"result_ttl_s": 120.0, "stream_ttl_s": 120.0}
_WARM_UP_S = 1.0
_SUPERVISE_S = 0.03
_PROGRESS_EVERY, _VLLM_PROGRESS_EVERY = 100, 5
"""Kills between two lines of progress."""


def usual_fleet(workers: int, **changes: Any) -> FleetShape:
    """Return the fleet of a plain `flotilla up`, with another gateway and some more workers."""
    return FleetShape(workers, gateways=2, settings=_KEPT, **changes)


def hard_fleet(workers: int = 10, **changes: Any) -> FleetShape:
    """Return the fleet of a fast run: a short lease, so that stopped workers take less time.

    At this rate of kills some jobs lose several workers in a row before their first token.
    """
    hard: Mapping[str, Any] = {"lease_s": 3.0, "max_attempts": 20, "appendfsync": "always"}
    return usual_fleet(workers, **{**hard, **changes})


@dataclass(frozen=True, slots=True)
class RunShape:
    """How a run is made."""

    kills: int
    seed: int
    rate: float
    """Kills a second, on average."""
    kinds: tuple[KillKind, ...] = tuple(KillKind)
    clients: int = 24
    timeout_s: float = 60.0
    """A client's time limit for one request."""
    end_s: float = 30.0
    """How long a job may run on after its client has left, before that counts as an error."""
    silent_s: float = 6.0
    """A worker that stands still for good is killed and replaced after so long."""
    one_at_a_time: bool = False
    """A kill of a worker waits until all workers serve; with vLLM it always does."""
    client_attempts: int = 200
    """Failed attempts in a row of the resuming client."""
    fleet: FleetShape = field(default_factory=hard_fleet)
    limits: PauseLimits = field(default_factory=PauseLimits)

    @classmethod
    def defaults(cls, fleet: FleetShape, **given: Any) -> RunShape:
        """Return a run at the settings of a plain `flotilla up`."""
        return cls(
            fleet=fleet,
            silent_s=2 * fleet.lease_s,
            client_attempts=Limits().attempts,
            limits=DEFAULTS_LIMITS,
            **given,
        )


@dataclass(slots=True)
class RunResult:
    """What a run found."""

    shape: RunShape
    tally: Tally
    seconds: float
    classes: list[str]
    """The classes of requests that took part."""
    ended_early: str = ""
    """Why the run ended before its last kill; empty if it did not."""


class KillRun:
    """Plays one run; `play` once."""

    def __init__(self, folder: Path, shape: RunShape, progress: Progress) -> None:
        self._shape = shape
        self._progress = progress
        self._tally = Tally()
        source = VllmSource(shape.seed) if shape.fleet.vllm else RequestSource()
        self._trial = Trial(
            folder,
            shape.fleet,
            source,
            self._add,
            timeout_s=shape.timeout_s,
            attempts=shape.client_attempts,
        )
        self._trial.end_s = shape.end_s

    async def play(self) -> RunResult:
        """Run; raises ProcessError if the fleet can't be started, and a client's own errors."""
        shape, tally = self._shape, self._tally
        async with self._trial as trial:
            fleet = trial.fleet
            one_at_a_time = shape.one_at_a_time or shape.fleet.vllm
            self._killer = killer = Killer(fleet, trial.clients, shape.silent_s, one_at_a_time)
            trial.add_task(asyncio.create_task(_supervise(fleet)))
            tally.kills_of = killer.of_process
            began, ended_early = time.monotonic(), ""
            try:
                trial.clients.start(trial.source.draw, clients=shape.clients, seed=shape.seed)
                await self._kill_all(began)
                await trial.stop()
            except ProcessError as error:  # what was counted until then is reported
                ended_early = str(error)
            finally:
                await killer.cancel()
            tally.waited_s = killer.waited_s
            tally.generated_tokens = fleet.generated_tokens()
            if not ended_early:
                tally.leftovers = await asyncio.to_thread(leftovers, fleet.client)
                url, shards = fleet.redis_url, shape.fleet.shards
                tally.add_ledger(await ledger_errors(url, shards, tally.logged))
            tally.ended_by_themselves = fleet.unexpected
            seconds = time.monotonic() - began
        classes = [each.name for each in trial.source.classes]
        return RunResult(shape, tally, seconds, classes, ended_early)

    async def _kill_all(self, began: float) -> None:
        shape, tally, killer = self._shape, self._tally, self._killer
        await asyncio.sleep(_WARM_UP_S)
        every = _VLLM_PROGRESS_EVERY if shape.fleet.vllm else _PROGRESS_EVERY
        async for planned in _in_time(
            plan(shape.seed, shape.kills, shape.rate, shape.kinds), killer
        ):
            await killer.kill(planned)
            tally.kills[planned.kind] += 1
            killer.check()
            self._trial.check()
            if tally.kills.total() % every == 0:
                self._progress(_progress_line(tally, time.monotonic() - began))
        await killer.finish()

    def _add(self, seen: Observation, stored: StoredJob | None) -> None:
        self._tally.add(seen, stored, self._killer.hits.pop(seen.job_id, ()))


async def _in_time(planned: Iterable[PlannedKill], killer: Killer) -> AsyncIterator[PlannedKill]:
    """Yield the kills at their times.

    The plan's clock stands still while it waits for workers that start.
    """
    at = time.monotonic()
    for each in planned:
        at += each.after_s + await killer.wait_until_all_serve(each)
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        yield each


async def _supervise(fleet: Fleet) -> None:
    while True:
        fleet.supervise()
        await asyncio.sleep(_SUPERVISE_S)


def _progress_line(tally: Tally, seconds: float) -> str:
    return (
        f"{seconds:.0f} s: {tally.kills.total()} kills, {tally.jobs.total()} jobs, "
        f"{tally.tokens_lost} tokens lost, {tally.tokens_repeated} repeated, "
        f"{tally.streams_cut} streams cut, {tally.failed} failed, {tally.wrong} wrong"
    )

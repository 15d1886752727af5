"""One run: a fleet, its clients, the kills, and the check of every answer and record."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import redis.asyncio
from redis.exceptions import RedisError

from load_tests.faults.kills.clients import KillClients
from load_tests.faults.kills.http_client import Gateways
from load_tests.faults.kills.kill import KillKind
from load_tests.faults.kills.kill_fleet import FleetShape, KillFleet
from load_tests.faults.kills.kill_schedule import PlannedKill, plan
from load_tests.faults.kills.killer import Killer
from load_tests.faults.kills.observation import Observation
from load_tests.faults.kills.pauses import PauseLimits
from load_tests.faults.kills.request_source import RequestSource, VllmSource
from load_tests.faults.kills.stored_job import StoredJob, read_jobs
from load_tests.faults.kills.tally import Tally
from load_tests.faults.leftovers import leftovers
from load_tests.harness.errors import ProcessError
from load_tests.harness.session import Progress

_WARM_UP_S = 1.0
_SUPERVISE_S = 0.03
_VERIFY_S = 0.5
_BATCH = 100
_PROGRESS_EVERY, _VLLM_PROGRESS_EVERY = 100, 5
"""Kills between two lines of progress."""


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
    fleet: FleetShape = field(default_factory=FleetShape)
    limits: PauseLimits = field(default_factory=PauseLimits)
    controls: tuple[str, ...] = ()
    """Negative controls; see controls.py."""


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
        self._folder = folder
        self._shape = shape
        self._progress = progress
        self._tally = Tally()
        self._unverified: deque[Observation] = deque()
        self._source: RequestSource = (
            VllmSource(shape.seed) if shape.fleet.vllm else RequestSource()
        )

    async def play(self) -> RunResult:
        """Run; raises ProcessError if the fleet can't be started, and a client's own errors."""
        shape = self._shape
        await self._source.start()
        fleet = await asyncio.to_thread(KillFleet, self._folder, shape.fleet, shape.controls)
        gateways = Gateways(
            fleet.urls, timeout_s=shape.timeout_s, attempts=shape.fleet.client_attempts
        )
        client = redis.asyncio.Redis.from_url(fleet.redis.url, socket_timeout=5.0)
        try:
            return await self._play(fleet, gateways, client)
        finally:
            self._source.close()
            await gateways.close()
            with contextlib.suppress(RedisError, OSError):
                await client.aclose()
            await asyncio.to_thread(fleet.close)

    async def _play(
        self, fleet: KillFleet, gateways: Gateways, client: redis.asyncio.Redis
    ) -> RunResult:
        shape, tally = self._shape, self._tally
        clients = KillClients(
            gateways,
            self._source,
            self._unverified.append,
            seed=shape.seed,
            clients=shape.clients,
            timeout_s=shape.timeout_s,
        )
        killer = Killer(fleet, gateways, clients.open.values)
        background = [
            asyncio.create_task(self._supervise(fleet)),
            asyncio.create_task(self._verify(client, killer)),
        ]
        tally.kill_log, tally.kills_of = killer.log, killer.of_process
        began = time.monotonic()
        ended_early = ""
        every = _VLLM_PROGRESS_EVERY if shape.fleet.vllm else _PROGRESS_EVERY
        try:
            clients.start()
            await asyncio.sleep(_WARM_UP_S)
            planned = plan(shape.seed, shape.kills, shape.rate, shape.kinds)
            async for kind in _kill_all(planned, killer):
                tally.kills[kind] += 1
                clients.check()
                _check(background)
                if tally.kills.total() % every == 0:
                    self._progress(_progress_line(tally, time.monotonic() - began))
            await killer.finish()
            await clients.stop()
            while self._unverified:
                await asyncio.sleep(_VERIFY_S)
                _check(background)
        except ProcessError as error:  # what was counted until then is reported
            ended_early = str(error)
        finally:
            clients.cancel()
            await killer.cancel()
            for task in background:
                task.cancel()
            await asyncio.gather(*background, return_exceptions=True)
        tally.waited_s = killer.waited_s
        tally.generated_tokens = fleet.forked.generated_tokens()
        if not ended_early:
            tally.leftovers = await asyncio.to_thread(leftovers, fleet.redis.client)
        tally.ended_by_themselves = fleet.unexpected
        seconds = time.monotonic() - began
        return RunResult(
            shape, tally, seconds, [each.name for each in self._source.classes], ended_early
        )

    async def _supervise(self, fleet: KillFleet) -> None:
        while True:
            fleet.supervise()
            await asyncio.sleep(_SUPERVISE_S)

    async def _verify(self, client: redis.asyncio.Redis, killer: Killer) -> None:
        """Check each request once its job has ended."""
        while True:
            await asyncio.sleep(_VERIFY_S)
            batch = [self._unverified[n] for n in range(min(_BATCH, len(self._unverified)))]
            known = [seen.job_id for seen in batch if seen.job_id]
            try:
                stored = await read_jobs(client, known) if known else {}
            except (RedisError, OSError):
                continue
            for seen in batch:
                self._unverified.popleft()
                found = stored.get(seen.job_id)
                if found is not None and _may_end(seen, found, self._shape.end_s):
                    self._unverified.append(seen)
                else:
                    self._tally.add(seen, found, killer.hits.pop(seen.job_id, ()))


async def _kill_all(planned: Iterable[PlannedKill], killer: Killer) -> AsyncIterator[KillKind]:
    """Carry out the kills at their times; yield the kind of each.

    The plan's clock stands still while it waits for workers that load.
    """
    at = time.monotonic()
    for each in planned:
        at += each.after_s + await killer.wait_until_loaded(each)
        await asyncio.sleep(max(0.0, at - time.monotonic()))
        yield await killer.kill(each)
        killer.check()


def _may_end(seen: Observation, found: StoredJob, end_s: float) -> bool:
    return not found.job.state.terminal and time.monotonic() < seen.ended + end_s


def _check(tasks: Sequence[asyncio.Task[None]]) -> None:
    """Raise the error of a task that has ended."""
    for task in tasks:
        if task.done():
            task.result()


def _progress_line(tally: Tally, seconds: float) -> str:
    return (
        f"{seconds:.0f} s: {tally.kills.total()} kills, {tally.jobs.total()} jobs, "
        f"{tally.tokens_lost} tokens lost, {tally.tokens_repeated} repeated, "
        f"{tally.streams_cut} streams cut, {tally.failed} failed, {tally.wrong} wrong"
    )

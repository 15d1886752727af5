"""Drain: the jobs of a worker that has to end are handed over to others, as far as these have room.

A job that is handed over keeps its log: the worker that claims it continues the answer where it
stopped. Jobs that no other worker has room for go on here until the drain deadline.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Iterable

from shared.job.lanes import FLEX
from shared.platform.logs import RareWarning
from shared.platform.tasks import end
from shared.store.interface import StoreError
from shared.store.views import next_place
from worker.core.job_run import JobRun
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership

log = logging.getLogger("flotilla.worker")

_AGAIN_S = 0.5
"""Between two readings of the free slots of other workers."""
_CHECK_S = 0.25


def how_many(free_slots: int, waiting: int, jobs: int, sequences: int) -> int:
    """How many of a worker's jobs, which have so many sequences together, may move now.

    `free_slots`: of other workers; `waiting`: jobs in the queue, which take some of these.
    """
    per_job = max(1.0, sequences / jobs) if jobs else 1.0
    return min(jobs, int(max(0, free_slots - waiting) / per_job))


def cheapest(runs: Iterable[JobRun], count: int) -> list[JobRun]:
    """The runs to move first: those that the engine has not begun, then those with least output.

    Those that no other worker could continue are left out.
    """

    def cost(run: JobRun) -> tuple[bool, int]:
        return run.buffer.reached_engine, run.buffer.completion_tokens

    movable = [run for run in runs if run.buffer.movable and not run.final_state]
    return sorted(movable, key=cost)[:count]


class Drain:
    """The end of one worker's jobs. Nothing is claimed any more."""

    def __init__(self, member: Membership, loop: WorkerLoop) -> None:
        self._member = member
        self._loop = loop
        self._warn = RareWarning(log)

    async def run(
        self, deadline_s: float, forced: asyncio.Event, engine_failed: Callable[[], bool]
    ) -> None:
        """Return when no job is left, after `deadline_s`, when `forced` is set or the engine has
        failed; jobs that are left then are released. They are blamed for a failed engine."""
        if self._loop.runs:
            log.info("draining %d jobs, at most %.0f s", len(self._loop.runs), deadline_s)
        stop = asyncio.ensure_future(forced.wait())
        emptying = asyncio.ensure_future(self._empty(deadline_s))
        failed = False
        try:
            while not (emptying.done() or stop.done() or failed):
                await asyncio.wait({stop, emptying}, timeout=_CHECK_S, return_when=FIRST_COMPLETED)
                failed = engine_failed()
        finally:
            await end([stop, emptying])
        if not emptying.cancelled() and (error := emptying.exception()):
            log.error("jobs not handed over", exc_info=error)
        if failed:
            await self._loop.releases.all("engine_died", blame=True)
        else:
            await self._loop.releases.all("drained", blame=False)

    async def _empty(self, deadline_s: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + deadline_s
        while self._loop.runs and clock() < until:
            await self._move_jobs()
            await self._loop.runs.wait_until_empty(min(_AGAIN_S, until - clock()))

    async def _move_jobs(self) -> None:
        loop, member = self._loop, self._member
        try:
            last = await next_place(member.queue, member.pool, FLEX, "", but_of=member.worker_id)
            count = how_many(last.free, last.others, len(loop.runs), loop.sequences)
            await loop.releases.some(cheapest(loop.runs.values(), count), "handed_over")
        except StoreError as error:
            self._warn("jobs not handed over, trying again: %s", error)

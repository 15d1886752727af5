"""Drain: the jobs of a worker that has to end are handed over to others, as far as these have room.

A job that is handed over keeps its log: the worker that claims it continues the answer where it
stopped. Jobs that no other worker has room for go on here until the drain deadline.
"""

from __future__ import annotations

import asyncio
import logging
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Iterable, Mapping

from shared.platform.tasks import end
from shared.store.interface import StoreError
from shared.store.redis.depths import free_slots
from shared.store.redis.job_queue import JobQueue
from worker.core.executor import Executor
from worker.core.job_run import JobRun

log = logging.getLogger("flotilla.worker")

_AGAIN_S = 0.5
"""Between two looks at the room that other workers have."""
_CHECK_S = 0.25
_RELEASE_TIMEOUT_S = 10.0
_RETRY_S = 0.1


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

    def __init__(self, queue: JobQueue, executor: Executor, pool: str, worker_id: str) -> None:
        self._queue = queue
        self._executor = executor
        self._pool = pool
        self._worker_id = worker_id

    async def run(
        self, deadline_s: float, forced: asyncio.Event, engine_failed: Callable[[], bool]
    ) -> None:
        """Return when no job is left, after `deadline_s`, when `forced` is set or the engine has
        failed; jobs that are left then are released. They are blamed for a failed engine."""
        if self._executor.runs:
            log.info("draining %d jobs, at most %.0f s", len(self._executor.runs), deadline_s)
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
            await release_all(self._executor, "engine_died", blame=True)
        else:
            await release_all(self._executor, "drained", blame=False)

    async def _empty(self, deadline_s: float) -> None:
        clock = asyncio.get_running_loop().time
        until = clock() + deadline_s
        while self._executor.runs and clock() < until:
            await self._move_jobs()
            await self._executor.wait_until_empty(min(_AGAIN_S, until - clock()))

    async def _move_jobs(self) -> None:
        executor = self._executor
        try:
            free = await free_slots(self._queue, self._pool, but_of=self._worker_id)
            count = how_many(free.slots, free.waiting, len(executor.runs), executor.sequences)
            states = await executor.release(cheapest(executor.runs.values(), count), "handed_over")
        except StoreError as error:
            log.warning("jobs not handed over, trying again: %s", error)
            return
        _log_released("handed_over", states)


async def release_all(executor: Executor, reason: str, *, blame: bool) -> None:
    """Abort and release all jobs; if Redis does not answer for some time, their leases expire."""
    try:
        async with asyncio.timeout(_RELEASE_TIMEOUT_S):
            while True:
                try:
                    states = await executor.release_all(reason, blame=blame)
                    break
                except StoreError as error:
                    log.warning("jobs not released, trying again: %s", error)
                    await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        log.warning("jobs not released: their leases will expire")
        return
    _log_released(reason, states)


def _log_released(reason: str, states: Mapping[str, str]) -> None:
    for job_id, state in states.items():
        log.info("job released (%s), it is %s now", reason, state, extra={"job_id": job_id})

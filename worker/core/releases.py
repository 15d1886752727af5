"""Releases: jobs of a worker go back to the queue before they have ended."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence

from shared.job.job import LeasedJob
from shared.platform.logs import RareWarning
from shared.store.interface import Store, StoreError
from worker.core.job_run import JobRun
from worker.core.runs import Runs

log = logging.getLogger("flotilla.worker")
_warn = RareWarning(log)

_TIMEOUT_S = 10.0
_RETRY_S = 0.1
_ENGINE_S = 2.0
"""The engine's time to end requests before their jobs are released."""


class Releases:
    """Releases the jobs of one worker, which are in `runs`. `reason` is for logs and traces."""

    def __init__(self, queue: Store, runs: Runs) -> None:
        self._queue = queue
        self._runs = runs

    async def failed(self, run: JobRun) -> None:
        """Release a job whose run has failed, while its last entries are still in the step log."""
        reason = "run_failed"
        _trace([run], reason)
        run.abort()
        try:
            states = await self._queue.release([run.job], reason, blame=True)
        except Exception as error:
            log.warning("job not released: its lease will expire", exc_info=error)
            return
        for state in states.values():
            log.warning("job released (%s), it is %s now", reason, state)

    async def some(self, runs: Sequence[JobRun], reason: str, *, in_turn: bool = False) -> None:
        """Abort some runs and release their jobs at once, without blame.

        `in_turn`: see `Store.release`.
        If Redis does not answer for 10 s, their leases expire.
        """
        _trace(runs, reason)
        for run in runs:
            del self._runs[run.job.id]
            run.released = True
            run.abort(release=True)
        if not runs:
            return
        self._runs.unreleased += runs  # for `all`, should this be cancelled
        # Sent behind all output that was, so the jobs' logs are complete.
        jobs = [run.job for run in runs]
        await _repeat(lambda: self._release(jobs, reason, blame=False, in_turn=in_turn))
        for run in runs:
            self._runs.unreleased.remove(run)

    async def all(self, reason: str, *, blame: bool) -> None:
        """Abort and release all jobs; if Redis does not answer for 10 s, their leases expire.

        `blame` counts the attempt against each job that has begun.
        """
        await _repeat(lambda: self._all(reason, blame=blame))

    async def _all(self, reason: str, *, blame: bool) -> None:
        _trace(self._runs.values(), reason)
        for run in self._runs.values():
            run.abort(release=True)
        if self._runs.tasks:
            await asyncio.wait(set(self._runs.tasks), timeout=_ENGINE_S)
        runs = {*self._runs.unreleased, *self._runs.values()}
        for blamed in (True, False):
            jobs = [run.job for run in runs if (blame and run.has_begun) is blamed]
            if jobs:
                await self._release(jobs, reason, blame=blamed)

    async def _release(
        self, jobs: Sequence[LeasedJob], reason: str, *, blame: bool, in_turn: bool = False
    ) -> None:
        states = await self._queue.release(jobs, reason, blame=blame, in_turn=in_turn)
        for job_id, state in states.items():
            log.info("job released (%s), it is %s now", reason, state, extra={"job_id": job_id})


async def _repeat(release: Callable[[], Awaitable[None]]) -> None:
    """Release jobs, again while Redis does not answer, for 10 s in all."""
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            while True:
                try:
                    await release()
                    return
                except StoreError as error:
                    _warn("jobs not released, trying again: %s", error)
                    await asyncio.sleep(_RETRY_S)
    except TimeoutError:
        log.warning("jobs not released: their leases will expire")


def _trace(runs: Iterable[JobRun], reason: str) -> None:
    for run in runs:
        if run.trace is not None:
            run.trace.released(reason)

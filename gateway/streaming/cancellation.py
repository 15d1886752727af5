"""Cancels the jobs of clients that left, beyond the end of their requests."""

from __future__ import annotations

import asyncio
import contextlib
import logging

from shared.platform.redis_client import RedisError
from shared.queue.job_queue import JobQueue

log = logging.getLogger("flotilla.gateway")

_ATTEMPTS = 10
_RETRY_S = 1.0


class Cancellations:
    """The cancellations of one gateway process that Redis has not confirmed yet."""

    def __init__(self, queue: JobQueue) -> None:
        self._queue = queue
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, job_id: str, tenant: str, queued: asyncio.Future[None]) -> None:
        """Cancel the job once `queued` is done; does not wait. Retried while Redis is away."""
        task = asyncio.create_task(self._cancel(job_id, tenant, queued))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait for those that were started, but not longer than one retry takes."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _cancel(self, job_id: str, tenant: str, queued: asyncio.Future[None]) -> None:
        await asyncio.wait({queued})  # what is not queued yet can't be cancelled
        for _ in range(_ATTEMPTS):
            try:
                await self._queue.cancel(job_id, tenant)
            except (RedisError, OSError):
                await asyncio.sleep(_RETRY_S)
            else:
                return
        log.warning("%s could not be cancelled", job_id)

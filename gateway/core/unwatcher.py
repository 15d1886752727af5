"""Takes this gateway out of the watchers of jobs that no client of it follows any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from typing import Any

from shared.job.errors import FlotillaError
from shared.platform.logs import RareWarning
from shared.store.interface import Store, StoreError

log = logging.getLogger("flotilla.gateway")

_ATTEMPTS = 10
_RETRY_S = 1.0


class Unwatcher:
    """The calls of `unwatch` of one gateway process that Redis has not confirmed yet.

    They outlast their requests. What happens to a job without watchers is decided in
    shared/store/redis/scripts/common/watchers.lua.
    """

    def __init__(self, queue: Store, gateway_id: str, has_readers: Callable[[str], bool]) -> None:
        """`has_readers`: whether another client of this gateway follows a job."""
        self._queue = queue
        self._gateway_id = gateway_id
        self._has_readers = has_readers
        self._warn = RareWarning(log)
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, job_id: str, queued: asyncio.Future[Any] | None = None) -> None:
        """Call it when a client of this job has left; it does not wait, and retries for a while.

        `queued` is done once the job is in the queue; None: it is.
        """
        task = asyncio.create_task(self._unwatch(job_id, queued))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def drain(self) -> None:
        """Wait for those that were started, for one second at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_RETRY_S):
                await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _unwatch(self, job_id: str, queued: asyncio.Future[Any] | None) -> None:
        if queued is not None:
            await asyncio.wait({queued})  # what is not queued yet has no watchers
            if not queued.cancelled() and isinstance(queued.exception(), FlotillaError):
                return  # the queue has refused it
        for _ in range(_ATTEMPTS):
            if self._has_readers(job_id):
                return
            try:
                await self._queue.unwatch(job_id, self._gateway_id)
            except StoreError:
                await asyncio.sleep(_RETRY_S)
            else:
                return
        self._warn("%s could not be unwatched", job_id)

"""Reads from Redis what it holds of each ended request, once its job has ended."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable

from load_tests.oracle.observation import Observation
from load_tests.oracle.stored_job import StoredJob, read_jobs
from shared.store.errors import StoreError
from shared.store.servers import Servers

_EVERY_S = 0.5
_BATCH = 100


class Verifier:
    """`run` calls `on_read` with each request that was added, and its record."""

    def __init__(
        self,
        servers: Servers,
        on_read: Callable[[Observation, StoredJob | None], None],
        end_s: float = 30.0,
    ) -> None:
        """`end_s`: how long a job may run on after its client has left. `run` closes `servers`."""
        self._servers = servers
        self._on_read = on_read
        self._end_s = end_s
        self._waiting: deque[Observation] = deque()

    def add(self, seen: Observation) -> None:
        """Read this request's record soon."""
        self._waiting.append(seen)

    @property
    def idle(self) -> bool:
        """Whether all records were read."""
        return not self._waiting

    async def run(self) -> None:
        """Read records until cancelled."""
        try:
            while True:
                await asyncio.sleep(_EVERY_S)
                await self._read()
        finally:
            with contextlib.suppress(StoreError):
                await self._servers.close()

    async def _read(self) -> None:
        batch = [self._waiting[n] for n in range(min(_BATCH, len(self._waiting)))]
        known = [seen.job_id for seen in batch if seen.job_id]
        try:
            stored = await read_jobs(self._servers, known) if known else {}
        except StoreError:
            return
        for seen in batch:
            self._waiting.popleft()
            found = stored.get(seen.job_id)
            may_end = time.monotonic() < seen.ended + self._end_s
            if found is not None and not found.job.state.terminal and may_end:
                self._waiting.append(seen)
            else:
                self._on_read(seen, found)

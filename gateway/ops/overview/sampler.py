"""Takes the overview once a second while it is viewed, or was requested in the last ten seconds.

All viewers of a gateway get the same bytes, so Redis has as little to do for fifty as for one.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

from shared.job.errors import GatewayStopped, OverviewFailed
from shared.platform import logs
from shared.platform.tasks import end

log = logging.getLogger("flotilla.overview")

INTERVAL_S = 1.0
LINGER_S = 10.0
"""For so long after a request it is taken, so that clients that poll it get rates, too."""


class Sampler:
    """Calls `take`, which makes an overview, in one task."""

    def __init__(
        self,
        take: Callable[[], Awaitable[dict[str, Any]]],
        interval_s: float = INTERVAL_S,
        linger_s: float = LINGER_S,
    ) -> None:
        self._take = take
        self._interval_s = interval_s
        self._linger_s = linger_s
        self._linger_until = float("-inf")
        self._viewers = 0
        self._task: asyncio.Task[None] | None = None
        self._latest: tuple[float, bytes] | None = None  # when it was taken, monotonic
        self._changed = asyncio.Event()
        self._failures = 0
        self._outdated = asyncio.Event()
        self._closed = False
        self._warn = logs.RareWarning(log)

    async def latest(self) -> bytes:
        """The overview as JSON, at most a little more than a second old.

        Raises GatewayStopped and OverviewFailed.
        """
        self._linger_until = time.monotonic() + self._linger_s
        self._start()
        data = self._fresh()
        while data is None:
            if self._closed:
                raise GatewayStopped("This gateway is being stopped.")
            failures = self._failures
            await self._next()
            data = self._fresh()
            if data is None and self._failures > failures:
                raise OverviewFailed("The state of the fleet could not be read; see the log.")
        return data

    async def follow(self) -> AsyncGenerator[bytes, None]:
        """The overview as JSON now, and then each new one, until `close`.

        A slow client misses some: it always gets the latest.
        """
        self._viewers += 1
        sent: tuple[float, bytes] | None = None
        try:
            self._start()
            while not self._closed:
                if self._fresh() is not None and self._latest is not sent:
                    sent = self._latest
                    assert sent is not None
                    yield sent[1]
                    continue  # the next one may be there already
                await self._next()
        finally:
            self._viewers -= 1

    def outdate(self) -> None:
        """The fleet was changed by a call: `latest` returns nothing that was read before now."""
        self._latest = None
        self._outdated.set()

    async def close(self) -> None:
        """End all streams and the task."""
        self.end_streams()
        if self._task is not None:
            await end([self._task])

    def end_streams(self) -> None:
        """End all streams; no further ones are served."""
        self._closed = True
        self._changed.set()

    def _start(self) -> None:
        if (self._task is None or self._task.done()) and not self._closed:
            self._task = asyncio.create_task(self._run(), name="overview")

    def _fresh(self) -> bytes | None:
        if self._latest is None or time.monotonic() - self._latest[0] > 1.5 * self._interval_s:
            return None
        return self._latest[1]

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _next(self) -> None:
        """Wait until there is a new overview, a reading has failed, or the end."""
        changed = self._changed
        if not self._closed:
            await changed.wait()

    async def _run(self) -> None:
        while not self._closed and (self._viewers or time.monotonic() < self._linger_until):
            began = time.monotonic()
            self._outdated.clear()
            try:
                data = json.dumps(await self._take(), ensure_ascii=False, allow_nan=False).encode()
                if not self._outdated.is_set():
                    self._latest = time.monotonic(), data
                    self._wake()
            except Exception as error:
                # The task goes on: viewers see the age of the latest overview.
                self._failures += 1
                self._wake()
                self._warn("the overview could not be made: %r", error)
                log.debug("the overview could not be made", exc_info=True)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(max(0.0, began + self._interval_s - time.monotonic())):
                    await self._outdated.wait()

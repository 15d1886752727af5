"""The child process in which Celery runs: it is started again whenever it ends."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys

from shared.platform.backoff import Backoff
from shared.platform.death_signal import signal_at_parent_death

log = logging.getLogger("flotilla.maintenance")

_GRACE_S = 8.0
"""From SIGTERM to SIGKILL. A message that was taken but not acknowledged is delivered again."""
_HEALTHY_LIFE_S = 60.0


class CeleryProcess:
    """Runs `python -m gateway.maintenance.celery_worker` until `stop`."""

    def __init__(self, stdout: int) -> None:
        """`stdout` is the file descriptor for the worker's log lines."""
        self._stdout = stdout
        self._process: asyncio.subprocess.Process | None = None
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Keep the process running until `stop`. Raises OSError if it can't be started."""
        backoff, clock = Backoff(1.0, 30.0), asyncio.get_running_loop().time
        while not self._stopping.is_set():
            started_at = clock()
            self._process = process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "gateway.maintenance.celery_worker"),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=self._stdout,
                preexec_fn=signal_at_parent_death(os.getpid(), signal.SIGKILL),
            )
            status = await process.wait()
            if self._stopping.is_set():
                return
            if clock() - started_at > _HEALTHY_LIFE_S:
                backoff.reset()
            delay_s = backoff.next_delay_s()
            log.error("Celery ended with status %d; restarting it in %.1f s", status, delay_s)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), delay_s)

    def kill(self) -> None:
        """End the process now; `run` starts it again."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def stop(self) -> None:
        """End the process by SIGTERM, after a while by SIGKILL; returns when it has ended."""
        self._stopping.set()
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            await asyncio.wait_for(self._process.wait(), _GRACE_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()

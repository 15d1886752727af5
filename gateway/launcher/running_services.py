"""The services of `flotilla up` that run, each as a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.launcher.service import Service
from gateway.launcher.welcome import progress

_PROGRESS_S = 10.0


class RunningServices:
    """Starts services and notices when one can't be kept running. `say` shows a line."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._tasks: dict[Service, asyncio.Task[None]] = {}
        self._failure: BaseException | None = None
        self.failed = asyncio.Event()
        """Set once a service has ended by an error: `raise_failure` raises it."""

    def __contains__(self, service: Service) -> bool:
        return service in self._tasks

    def start(self, service: Service, run: Coroutine[None, None, None] | None = None) -> None:
        """Run a service as a task; `run` is the coroutine if it is not `service.run()`."""
        task = asyncio.create_task(run or service.run(), name=service.name)
        self._tasks[service] = task
        task.add_done_callback(lambda task: self._ended(service, task))

    def _ended(self, service: Service, task: asyncio.Task[None]) -> None:
        self._tasks.pop(service, None)
        if not task.cancelled() and (failure := task.exception()) is not None:
            self._failure = self._failure or failure
            self.failed.set()

    def raise_failure(self) -> None:
        """Raise the error that a service has ended by, if one has."""
        if self._failure is not None:
            raise self._failure

    async def until_ready(self, services: list[Service]) -> None:
        """Wait until all of them are ready. Raises as `raise_failure`."""
        clock = asyncio.get_running_loop().time
        begun = clock()
        ready = asyncio.create_task(_all_ready(services), name="all ready")
        failing = asyncio.create_task(self.failed.wait(), name="failing")
        try:
            while not ready.done():
                events: list[asyncio.Future[Any]] = [ready, failing]
                await asyncio.wait(events, timeout=_PROGRESS_S, return_when=asyncio.FIRST_COMPLETED)
                self.raise_failure()
                late = [service.name for service in services if not service.ready.is_set()]
                if late:
                    self._say(progress(late, clock() - begun))
        finally:
            ready.cancel()
            failing.cancel()

    async def kill(self, other: asyncio.Task[None]) -> None:
        """Kill all that still run; returns when they and the `other` task have ended."""
        for service in self._tasks:
            service.kill()
        await asyncio.wait({other, *self._tasks.values()})


async def _all_ready(services: list[Service]) -> None:
    for service in services:
        await service.ready.wait()

"""A process that is kept running: started, watched until ready, started again when it has ended."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from gateway.launcher import root_cause
from gateway.launcher.child import Child, Command
from gateway.launcher.console import Console

FIRST_DELAY_S = 1.0
LONGEST_DELAY_S = 30.0
HEALTHY_LIFE_S = 60.0
START_TRIES = 3
USAGE_ERROR = 2  # the exit status for wrong settings or arguments
_POLL_S = 0.2


class GaveUpError(Exception):
    """A process that never served is not started again; the message has its name and the reason."""


@dataclass(frozen=True, slots=True)
class Restart:
    """Whether and when a process that ended by itself is started again."""

    delay_s: float | None  # None: give up
    failures: int  # in a row, this one counted
    reason: str


def after_end(
    *,
    status: int,
    lived_s: float,
    was_ready: bool,
    ever_ready: bool,
    failures: int,
    alike: bool = False,
) -> Restart:
    """Decide about the next start after a process ended.

    `was_ready` is about the run that has just ended, `ever_ready` about all runs, `failures` is
    the last decision's, `alike`: the run before ended with the same error.
    """
    if was_ready and lived_s >= HEALTHY_LIFE_S:
        failures = 0
    failures += 1
    if not ever_ready and status == USAGE_ERROR:
        return Restart(None, failures, "it refused its settings")
    if not ever_ready and alike:
        return Restart(None, failures, "it failed twice with the same error")
    if not ever_ready and failures >= START_TRIES:
        return Restart(None, failures, f"it never became ready in {failures} tries")
    delay_s = min(LONGEST_DELAY_S, FIRST_DELAY_S * 2 ** min(failures - 1, 30))
    return Restart(delay_s, failures, f"starting it again in {delay_s:g} s")


class Service:
    """Keeps one process running: `command` makes the command of each run, `is_ready` tests it."""

    def __init__(
        self,
        name: str,
        command: Callable[[], Command],
        is_ready: Callable[[], Awaitable[bool]],
        *,
        log: Path,
        console: Console,
    ) -> None:
        self.name = name
        self.ready = asyncio.Event()  # set when it first serves; stays set
        self.log = log
        self._command = command
        self._is_ready = is_ready
        self._console = console
        self._child: Child | None = None
        self._stopping = asyncio.Event()
        self._ended = asyncio.Event()
        self._ended.set()

    async def run(self) -> None:
        """Keep it running until `stop` or `kill`. Raises GaveUpError."""
        self._ended.clear()
        try:
            await self._keep_running()
        finally:
            self._ended.set()

    async def stop(self, grace_s: float) -> None:
        """Send SIGTERM (once, however often this is called); kill what is left after `grace_s`."""
        if self._child is not None and not self._stopping.is_set():
            self._child.terminate()
        self._stopping.set()
        try:
            await asyncio.wait_for(self._ended.wait(), grace_s)
        except TimeoutError:
            self._say(f"still running after {grace_s:g} s: killed")
            self.kill()
            await self._ended.wait()

    def kill_run(self, why: str) -> None:
        """Kill the process that runs, if one does; it is started again, as after any other end."""
        if self._child is not None and not self._stopping.is_set():
            self._say(f"{why}: killed")
            self._child.kill()

    def kill(self) -> None:
        """End it now."""
        self._stopping.set()
        if self._child is not None:
            self._child.kill()

    async def _keep_running(self) -> None:
        failures = 0
        last_kind = ""
        clock = asyncio.get_running_loop().time
        while not self._stopping.is_set():
            born, begin = clock(), self.log.stat().st_size if self.log.exists() else 0
            status, was_ready = await self._live()
            if self._stopping.is_set():
                return
            # A process that had served or was killed may have logged other errors before.
            causes = [] if was_ready or status < 0 else root_cause.find(self.log, begin)
            kind = root_cause.kind(causes)
            restart = after_end(
                status=status,
                lived_s=clock() - born,
                was_ready=was_ready,
                ever_ready=self.ready.is_set(),
                failures=failures,
                alike=bool(kind) and kind == last_kind,
            )
            failures, last_kind = restart.failures, kind
            self._console.end_of(self.name, self.log, causes)
            self._say(f"{how_it_ended(status)}; {restart.reason}")
            if restart.delay_s is None:
                raise GaveUpError(f"{self.name}: {restart.reason} (log: {self.log})")
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), restart.delay_s)

    async def _live(self) -> tuple[int, bool]:
        """Run the process once: its exit status, and whether it became ready."""
        show = self._console.shower(self.name)
        self._child = child = await Child.start(self._command(), self.log, show)
        if self._stopping.is_set():  # `stop` was called during the start
            child.kill()
        watch = asyncio.create_task(self._watch(), name=f"readiness of {self.name}")
        try:
            status = await child.end()
            return status, watch.done() and not watch.cancelled() and watch.exception() is None
        finally:
            self._child = None
            watch.cancel()
            child.kill()

    async def _watch(self) -> None:
        clock = asyncio.get_running_loop().time
        born = clock()
        while not await self._is_ready():  # noqa: ASYNC110 - it's another process
            await asyncio.sleep(_POLL_S)
        if self.ready.is_set():
            self._say(f"is ready again after {clock() - born:.0f} s")
        self.ready.set()

    def _say(self, line: str) -> None:
        self._console.show(self.name, line)


def how_it_ended(status: int) -> str:
    """An exit status in words."""
    if status >= 0:
        return f"ended with exit status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"

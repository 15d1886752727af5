"""Carries out the kills of a plan and notes which requests each of them hit."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import defaultdict
from collections.abc import Collection

from load_tests.clients.client_group import ClientGroup
from load_tests.faults.kills.kill_schedule import KillKind, PlannedKill
from load_tests.faults.kills.pauses import Hit
from load_tests.harness.fleet import LOADED_S, Fleet
from load_tests.oracle.observation import Observation
from tests.harness.waiting import ProcessError

_STREAMS_OF_A_WORKER, _STREAMS_S = 2, 10.0
OF_WORKERS = (KillKind.WORKER, KillKind.ENGINE, KillKind.STOP, KillKind.SILENT)


class Killer:
    """Kills processes of one fleet while `clients` send requests."""

    def __init__(
        self, fleet: Fleet, clients: ClientGroup, silent_s: float, one_at_a_time: bool
    ) -> None:
        """`silent_s`, `one_at_a_time`: see RunShape."""
        self.hits: dict[str, list[Hit]] = defaultdict(list)
        """Kills of gateways and Redis that hit each job, by its id. Which jobs a killed worker held
        is in their records."""
        self.of_process: dict[str, list[Hit]] = defaultdict(list)
        """When each process was killed, and how."""
        self.waited_s = 0.0
        """How long the plan has waited for workers that start."""
        self._fleet = fleet
        self._clients = clients
        self._silent_s = silent_s
        self._one_at_a_time = one_at_a_time
        self._background: set[asyncio.Task[None]] = set()

    async def wait_until_all_serve(self, planned: PlannedKill) -> float:
        """Wait until all workers serve, if kills of workers do and this is one; return the seconds.

        Waits for some streams, too, so that the kill hits one. Raises ProcessError after five
        minutes.
        """
        began = time.monotonic()
        if not self._one_at_a_time or planned.kind not in OF_WORKERS:
            return 0.0
        while not await asyncio.to_thread(self._fleet.all_serve):
            if time.monotonic() > began + LOADED_S:
                raise ProcessError("a replacement does not serve; see its log")
            await asyncio.sleep(0.1)
            self.check()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_STREAMS_S):
                while self._streams() < _STREAMS_OF_A_WORKER * len(self._fleet.workers):  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
        waited = time.monotonic() - began
        self.waited_s += waited
        return waited

    def _streams(self) -> int:
        """How many streams have begun, and have not ended."""
        return sum(each.streams and bool(each.at) for each in self._clients.open.values())

    async def kill(self, planned: PlannedKill) -> None:
        """Carry out one kill."""
        fleet, kind = self._fleet, planned.kind
        if kind in OF_WORKERS:
            await self._kill_worker(planned)
        elif kind is KillKind.GATEWAY:
            n = int(planned.choice * len(fleet.gateways))
            self._note(kind, fleet.gateways[n].name, self._answered_by(fleet.ports[n]))
            await asyncio.to_thread(fleet.kill_gateway, n)
        else:
            self._note(kind, "redis", self._clients.open.values())
            await asyncio.to_thread(fleet.kill_redis)

    def check(self) -> None:
        """Raise the error of a kill that is carried out in the background."""
        for task in tuple(self._background):
            if task.done():
                self._background.discard(task)
                task.result()

    async def finish(self) -> None:
        """Wait until no worker is stopped any more."""
        await asyncio.gather(*self._background)

    async def cancel(self) -> None:
        """Let the workers that are stopped go on now."""
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)

    async def _kill_worker(self, planned: PlannedKill) -> None:
        fleet = self._fleet
        while not (free := sorted(set(range(len(fleet.workers))) - fleet.busy)):
            await asyncio.sleep(0.05)
            fleet.supervise()
        n = free[int(planned.choice * len(free))]
        self._note(planned.kind, fleet.workers[n].name, ())
        if planned.kind is KillKind.WORKER:
            fleet.kill_worker(n)
        elif planned.kind is KillKind.ENGINE:
            fleet.kill_engine(n)
        else:
            for_good = planned.kind is KillKind.SILENT
            seconds = self._silent_s if for_good else planned.stop_times * fleet.shape.lease_s
            stop = self._stop_worker(n, seconds, for_good=for_good)
            self._background.add(asyncio.create_task(stop))

    async def _stop_worker(self, n: int, seconds: float, *, for_good: bool) -> None:
        fleet, worker = self._fleet, self._fleet.workers[n]
        fleet.busy.add(n)
        worker.stop(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            if for_good:
                fleet.kill_worker(n)
            else:
                worker.stop(signal.SIGCONT)
            fleet.busy.discard(n)

    def _answered_by(self, port: int) -> list[Observation]:
        """Return the open requests whose client is connected to this gateway."""
        port_of = self._clients.gateways.port_of
        return [seen for seen in self._clients.open.values() if port_of(seen.job_id) == port]

    def _note(self, kind: KillKind, process: str, hit: Collection[Observation]) -> None:
        now = time.monotonic()
        self.of_process[process].append((kind, now))
        for seen in hit:
            if seen.job_id:
                self.hits[seen.job_id].append((kind, now))

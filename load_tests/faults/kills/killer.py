"""Carries out the kills of a plan and notes which requests each of them hit."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Collection

from load_tests.faults.kills.http_client import Gateways
from load_tests.faults.kills.kill import KillKind
from load_tests.faults.kills.kill_fleet import KillFleet
from load_tests.faults.kills.kill_schedule import PlannedKill
from load_tests.faults.kills.observation import Observation
from load_tests.faults.kills.pauses import Hit
from load_tests.harness.errors import ProcessError
from load_tests.vllm.systems import LOADED_S

OF_WORKERS = (KillKind.WORKER, KillKind.ENGINE, KillKind.STOP, KillKind.SILENT)


class Killer:
    """Kills processes of one fleet. `open_requests` returns the requests that run now."""

    def __init__(
        self,
        fleet: KillFleet,
        gateways: Gateways,
        open_requests: Callable[[], Collection[Observation]],
    ) -> None:
        self.hits: dict[str, list[Hit]] = defaultdict(list)
        """Kills of gateways and Redis that hit each job, by its id. Which jobs a killed worker held
        is in their records."""
        self.log: list[tuple[float, KillKind, str]] = []
        """When each kill was carried out, and the process."""
        self.of_process: dict[str, list[Hit]] = defaultdict(list)
        """The same by process."""
        self._fleet = fleet
        self._gateways = gateways
        self._open = open_requests
        self._background: set[asyncio.Task[None]] = set()
        self.waited_s = 0.0
        """How long the plan has waited for workers that load vLLM."""

    async def wait_until_loaded(self, planned: PlannedKill) -> float:
        """With vLLM: wait until all workers serve, if one is to be killed; return the seconds.

        So replacements load one at a time. Raises ProcessError after five minutes.
        """
        began = time.monotonic()
        if not self._fleet.shape.vllm or planned.kind not in OF_WORKERS:
            return 0.0
        while not await asyncio.to_thread(self._fleet.all_serve):
            if time.monotonic() > began + LOADED_S:
                raise ProcessError("a replacement does not serve; see its log")
            await asyncio.sleep(0.1)
            self.check()
        waited = time.monotonic() - began
        self.waited_s += waited
        return waited

    async def kill(self, planned: PlannedKill) -> KillKind:
        """Carry out one kill; return its kind."""
        kind = planned.kind
        if kind in OF_WORKERS:
            await self._kill_worker(planned)
        elif kind is KillKind.GATEWAY:
            n = int(planned.choice * len(self._fleet.gateways))
            self._note(kind, f"gateway-{n}", self._answered_by(self._fleet.ports[n]))
            await self._fleet.kill_gateway(n)
        else:
            self._note(kind, "redis", self._open())
            await self._fleet.kill_redis()
        return kind

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
        elif planned.kind is KillKind.SILENT:
            self._background.add(asyncio.create_task(fleet.silence_worker(n)))
        else:
            seconds = planned.stop_times * fleet.shape.lost_after_s
            self._background.add(asyncio.create_task(fleet.stop_worker(n, seconds)))

    def _answered_by(self, port: int) -> list[Observation]:
        """Return the open requests whose client is connected to this gateway."""
        return [seen for seen in self._open() if self._gateways.port_of(seen.job_id) == port]

    def _note(self, kind: KillKind, process: str, hit: Collection[Observation]) -> None:
        now = time.monotonic()
        self.log.append((now, kind, process))
        self.of_process[process].append((kind, now))
        for seen in hit:
            if seen.job_id:
                self.hits[seen.job_id].append((kind, now))

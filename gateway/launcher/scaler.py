"""Starts and drains the workers of `flotilla up --autoscale` as the autoscaler decides.

The maintenance process decides; `Scaler` reads its decision from Redis every second.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine

from gateway.launcher.service import GaveUpError, Service
from gateway.launcher.worker_children import Workers
from gateway.ops.autoscaler.reconcile import Plan, instance, reconcile
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from shared.store.operators import ScaleStore
from shared.store.queue import Queue

_INTERVAL_S = 1.0
_TRY_AGAIN_S = 300.0
"""Wait after a worker did not become ready although others had: it may lack memory or a GPU."""


class Scaler:
    """Call `run` as a task; it ends by cancellation."""

    def __init__(
        self,
        workers: Workers,
        pool: str,
        queue: Queue,
        *,
        start: Callable[[Service, Coroutine[None, None, None]], None],
        grace_s: float,
        say: Callable[[str], None],
    ) -> None:
        """`start` runs a service's coroutine as a task; `grace_s`: time for a worker to end."""
        self._workers = workers
        self._pool = pool
        self._registry = Registry(queue.servers.primary)
        self._store = ScaleStore(queue)
        self._start = start
        self._grace_s = grace_s
        self._say = say
        self._stops: dict[int, asyncio.Task[None]] = {}
        self._one_served = False
        # (time, workers): until then, no more workers than these.
        self._room: tuple[float, int] | None = None

    async def run(self) -> None:
        """Act on the decision every second."""
        while True:
            # Without Redis the workers stay as they are; other processes log the problem.
            with contextlib.suppress(StoreError, OSError):
                await self.act()
            await asyncio.sleep(_INTERVAL_S)

    async def act(self) -> None:
        """Read the decision and act on it once. Raises StoreError."""
        self._one_served |= any(s.ready.is_set() for s in self._workers.services.values())
        plan = await self._plan()
        if plan is None:
            return
        for _ in range(plan.start):
            service = self.add()
            self._say(f"starting {service.name}")
        for name in plan.drain:
            self._drain(int(name))

    def add(self) -> Service:
        """Start one more worker."""
        number, service = self._workers.add()
        self._start(service, self._keep(number, service))
        return service

    async def _plan(self) -> Plan | None:
        """The workers to start and drain; None while there is no current decision."""
        now_s, scales = await self._store.read([self._pool])
        scale = scales.get(self._pool)
        if scale is None or scale.stale(now_s):
            return None
        known = {worker.id: worker for worker in await self._registry.workers()}
        ids = self._workers.ids
        instances = [
            instance(str(number), known.get(ids.get(number, "")), draining=number in self._stops)
            for number in self._workers.services
        ]
        return reconcile(self._at_most(scale.wanted), instances)

    def _at_most(self, wanted: int) -> int:
        if self._room is None:
            return wanted
        until, room = self._room
        if asyncio.get_running_loop().time() >= until:
            self._room = None
        return min(wanted, room)

    def _drain(self, number: int) -> None:
        service = self._workers.services[number]
        self._say(f"draining {service.name}")
        self._stops[number] = asyncio.create_task(service.stop(self._grace_s))

    async def _keep(self, number: int, service: Service) -> None:
        """Run a worker until it is drained. Raises GaveUpError if no worker ever served."""
        try:
            await service.run()
        except GaveUpError as error:
            if not self._one_served:
                raise
            room = len(self._workers.services) - 1
            self._room = (asyncio.get_running_loop().time() + _TRY_AGAIN_S, room)
            self._say(f"{error}; continuing with {room} for {_TRY_AGAIN_S:.0f} s")
        finally:
            self._workers.remove(number)
            self._stops.pop(number, None)

"""Kills workers of `flotilla up` that stand still, so that their services start them again.

A worker counts as lost while its entry in the registry has expired, although its process runs. One
that loads its model has an entry for an hour, and ends by itself if that takes too long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any

from gateway.launcher.worker_children import Workers
from shared.job.states import WorkerState
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry

_INTERVAL_S = 1.0
_GAP_S = 5.0
"""After so long without a reading, as without Redis, nothing is known of the time between."""


class StalledWorkers:
    """Decides which workers stand still, from what is announced at each reading."""

    def __init__(self, restart_after_s: float, drain_s: float) -> None:
        """`drain_s`: how long a drain takes at most."""
        self._restart_after_s = restart_after_s
        self._drain_s = drain_s
        self._read_at = float("-inf")
        self._well_at: dict[str, float] = {}
        self._state: dict[str, WorkerState] = {}

    async def run(self, redis: Any, pools: Collection[Workers]) -> None:
        """Kill those that stand still until cancelled; their services start them again."""
        registry = Registry(redis)
        while True:
            with contextlib.suppress(StoreError, OSError):  # other processes log the problem
                workers = await registry.workers()
                services = {
                    worker_id: workers_of.services[number]
                    for workers_of in pools
                    for number, worker_id in workers_of.ids.items()
                }
                announced = {worker.id: worker.state for worker in workers}
                for worker_id in self.find(services, announced, time.monotonic()):
                    services[worker_id].kill_run(f"{worker_id} stands still")
            await asyncio.sleep(_INTERVAL_S)

    def find(
        self, ids: Collection[str], announced: Mapping[str, WorkerState], now_s: float
    ) -> list[str]:
        """Those of `ids` to restart; each is found again only after the same time."""
        gap, self._read_at = now_s - self._read_at > _GAP_S, now_s
        self._state = {
            each: announced.get(each, self._state.get(each, WorkerState.STARTING)) for each in ids
        }
        self._well_at = {each: self._well_at.get(each, now_s) for each in ids}
        found = []
        for worker_id, state in self._state.items():
            drains = state is WorkerState.DRAINING
            serves = worker_id in announced and not drains
            if serves or gap or state is WorkerState.STARTING:
                self._well_at[worker_id] = now_s
            limit_s = self._restart_after_s + (self._drain_s if drains else 0.0)
            if now_s - self._well_at[worker_id] >= limit_s:
                self._well_at[worker_id] = now_s
                found.append(worker_id)
        return found

"""A fleet with maintenance processes and a storage, and what is done to them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from load_tests.faults.batches.fault_schedule import BatchFault, PlannedFault
from load_tests.faults.batches.history import keep
from load_tests.faults.batches.storages import RunStorage
from load_tests.harness.fleet import Fleet, FleetShape
from shared.store import keys
from tests.harness.processes import Process, process_tree

MAINTENANCE = 2
"""Processes."""
_PLAIN = (BatchFault.CELERY, BatchFault.MAINTENANCE, BatchFault.GATEWAY, BatchFault.WORKER)
_NOT_RENEWED_MS = 2500
"""An owner renews its lock each second: with so much time left of it, it does not."""
_FIND_S, _POLL_S = 4.0, 0.1


class MaintainedFleet:
    """`close` it at the end."""

    def __init__(self, folder: Path, shape: FleetShape, storage: RunStorage) -> None:
        """Raises ProcessError."""
        settings = {**shape.settings, "storage_url": storage.url}
        self.fleet = Fleet(folder, replace(shape, settings=settings))
        self.storage = storage
        self.redis_folder = folder / "redis"
        keep(self.redis_folder)
        self._locks = {kind: asyncio.Lock() for kind in BatchFault}
        self._maintenance = [self._start_maintenance() for _ in range(MAINTENANCE)]

    async def inject(self, planned: PlannedFault, batches: Sequence[str]) -> None:
        """Inject one fault; returns when it is over. `batches`: one of them has its owner stopped.

        Raises ProcessError if Redis or the storage does not come back.
        """
        fault = planned.fault
        async with self._locks[fault]:
            if fault in _PLAIN:
                self._kill(fault, planned.choice)
            elif fault is BatchFault.OWNER:
                batch_id = batches[int(planned.choice * len(batches))]
                await self._stop_owner(batch_id, planned.lasts_s)
            elif fault is BatchFault.STORAGE:
                await self._without_storage(planned.lasts_s)
            else:
                keep(self.redis_folder)
                await asyncio.to_thread(self.fleet.kill_redis, planned.lasts_s)

    def supervise(self) -> None:
        """Replace the processes that have ended; note those that were not killed."""
        self.fleet.supervise()
        for n, process in enumerate(self._maintenance):
            if process.popen.poll() is not None:
                self.fleet.note_end(process)
                self._maintenance[n] = self._start_maintenance()

    def close(self) -> None:
        """End all processes."""
        self.fleet.close()

    def _start_maintenance(self) -> Process:
        return self.fleet.stack.maintenance(name="maintenance")

    def _kill(self, fault: BatchFault, choice: float) -> None:
        fleet = self.fleet
        if fault is BatchFault.WORKER:
            fleet.kill_worker(int(choice * len(fleet.workers)))
        elif fault is BatchFault.GATEWAY:
            fleet.kill_gateway(int(choice * len(fleet.gateways)))
        else:
            n = int(choice * len(self._maintenance))
            process = self._maintenance[n]
            if fault is BatchFault.CELERY:
                for pid in _celery_of(process):
                    _signal(pid, signal.SIGKILL)
                return
            process.kill()
            self._maintenance[n] = self._start_maintenance()

    async def _without_storage(self, seconds: float) -> None:
        await asyncio.to_thread(self.storage.take_away)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.storage.bring_back()

    async def _stop_owner(self, batch_id: str, seconds: float) -> None:
        """Stop the owner of a batch. It is the process without which the lock is not renewed."""
        for pid in [pid for process in self._maintenance for pid in _celery_of(process)]:
            _signal(pid, signal.SIGSTOP)
            try:
                if await self._is_not_renewed(batch_id):
                    await asyncio.sleep(seconds)
                    return
            finally:
                _signal(pid, signal.SIGCONT)

    async def _is_not_renewed(self, batch_id: str) -> bool:
        lock = keys.first("batch_lock", batch_id)
        for _ in range(int(_FIND_S / _POLL_S)):
            await asyncio.sleep(_POLL_S)
            with contextlib.suppress(Exception):  # Redis may be away
                if 0 < int(self.fleet.client.pttl(lock)) < _NOT_RENEWED_MS:
                    return True
        return False


def _celery_of(maintenance: Process) -> list[int]:
    """The process of Celery, which may be about to start."""
    return list(process_tree(maintenance.popen.pid))[1:]


def _signal(pid: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)

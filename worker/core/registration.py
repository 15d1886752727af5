"""A worker's entries in the registry: its id, its heartbeats, the models that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from shared.fleet.registry import EXPIRY_S, HEARTBEAT_S, LOADING_EXPIRY_S, WorkerInfo
from shared.job.adapter_queues import adapter_queue
from shared.job.states import WorkerState
from shared.platform.metrics import WorkerMetrics
from shared.store.interface import StoreError
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.format_version import FORMAT_VERSION
from worker.core.executor import Executor
from worker.core.totals import ages
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.worker")

_VERSION = version("flotilla")  # at import, because it reads files

_JOB_IDS = 64
"""Most job ids in a heartbeat."""
_RETRY_S = 0.25


class WorkerIdTaken(Exception):
    """Another process is the worker with this id."""


class Registration:
    """One worker process in the registry.

    `status` returns the worker's state and the reason for it, `metrics_port` the port of its health
    server. `executor` is set once the model is loaded. `version` and `weight` are the pool's.
    """

    def __init__(
        self,
        registry: Registry,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        worker_id: str,
        pool: str,
        version: str = "",
        weight: int = 100,
        status: Callable[[], tuple[WorkerState, str]],
        metrics_port: Callable[[], int],
    ) -> None:
        self.worker_id = worker_id
        self.pool = pool
        self._version = version
        self._weight = weight
        self.models: list[dict[str, Any]] = []
        """The engine's entries of /v1/models."""
        self.executor: Executor | None = None
        self._registry = registry
        self._engine = engine
        self._metrics = metrics
        self._status = status
        self._metrics_port = metrics_port
        self._start_s: float | None = None
        # Distinguishes this process from another worker with the same id.
        self._process = secrets.token_hex(8)

    async def reserve_id(self) -> None:
        """Reserve the id; a killed process keeps it for five heartbeats. Raises WorkerIdTaken."""
        left_s = EXPIRY_S
        try:
            while not await self._registry.reserve(self.worker_id, self._process):
                before_s, left_s = left_s, await self._registry.reserved_s(self.worker_id)
                if left_s > before_s:  # the other process is alive and has extended it
                    raise WorkerIdTaken(
                        f"FLOTILLA_WORKER_ID={self.worker_id}: a running worker has this id; "
                        "give each worker its own id, or none"
                    )
                await asyncio.sleep(_RETRY_S)
        except StoreError as error:
            log.warning("worker id not reserved, the next heartbeat tries again: %s", error)

    async def announce(self, expiry_s: float = EXPIRY_S, failure: str = "") -> None:
        """Write the worker's entry, which expires after `expiry_s`. Raises StoreError.

        `failure`: why the worker ends, other than in good order.
        """
        state, reason = self._status()
        for each in WorkerState:
            self._metrics.state.labels(each).set(each is state)
        executor = self.executor
        load = self._engine.load() if executor else None
        info = WorkerInfo(
            id=self.worker_id,
            format=FORMAT_VERSION,
            pool=self.pool,
            state=state,
            engine=self._engine.kind,
            models=tuple(card["id"] for card in self.models),
            slots=self._engine.capacity.max_num_seqs if executor else 0,
            running=load.unfinished if load else 0,
            jobs=len(executor.runs) if executor else 0,
            kv_usage=load.kv_usage if load else 0.0,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_VERSION,
            metrics_port=self._metrics_port(),
            reason=reason,
            start_s=self._start_s,
            ages=ages(executor.runs.values()) if executor else (),
            job_ids=tuple(islice(executor.runs, _JOB_IDS)) if executor else (),
            clock_s=time.monotonic(),
            waits=self._metrics.queue_wait.counts,
            failure=failure,
            **(asdict(executor.totals.with_running(executor.runs.values())) if executor else {}),
        )
        await self._registry.announce(info, expiry_s=expiry_s)

    async def announce_if_possible(self) -> None:
        """As `announce`, but no error if Redis is unavailable: the next heartbeat announces it."""
        with contextlib.suppress(StoreError):
            await self.announce()

    async def announce_loading(self) -> None:
        """As `announce_if_possible`, before the model is loaded."""
        with contextlib.suppress(StoreError):
            await self.announce(LOADING_EXPIRY_S)

    async def set_models(self, cards: list[dict[str, Any]]) -> None:
        """Announce these models from now on; an adapter that is gone is not known any more."""
        gone = self._adapter_queues(self.models) - self._adapter_queues(cards)
        self.models = cards
        self._metrics.adapters.set(sum(bool(card.get("parent")) for card in cards))
        if gone:
            with contextlib.suppress(StoreError):
                await self._registry.forget_queues(gone)
        await self.register_models()

    def _adapter_queues(self, cards: list[dict[str, Any]]) -> set[str]:
        return {adapter_queue(self.pool, card["id"]) for card in cards if card.get("parent")}

    async def register_models(self) -> None:
        """Make the models known to the gateways, if Redis is available; heartbeats repeat it."""
        with contextlib.suppress(StoreError):
            await self._register_models()

    async def _register_models(self) -> None:
        await self._registry.register_models(self.pool, self.models, self._version, self._weight)

    def started(self) -> None:
        """The worker can claim from now on: its start time is complete."""
        self._start_s = _process_age_s()

    async def run_heartbeats(self) -> None:
        """Announce the worker until cancellation. Raises WorkerIdTaken."""
        while True:
            try:
                if not await self._registry.reserve(self.worker_id, self._process):
                    raise WorkerIdTaken(f"another worker has taken the id {self.worker_id}")
                await self._register_models()
                await self.announce()
                if self.executor is not None:
                    self.executor.advertised_slots.mark_stale()
            except StoreError as error:
                log.warning("heartbeat failed: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    async def leave(self, failure: str = "") -> None:
        """Remove the worker's entries, if Redis is available; else they expire.

        With a `failure`, the last announcement names it for operators and stays until it expires;
        the id is free at once.
        """
        with contextlib.suppress(StoreError):
            if not failure:
                await self._registry.leave(self.worker_id, self._process)
            elif await self._registry.reserve(self.worker_id, self._process):
                await self.announce(failure=failure)
                await self._registry.release_id(self.worker_id, self._process)


def _process_age_s() -> float | None:
    """Seconds since this process started, imports included; None where that is unknown."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

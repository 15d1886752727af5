"""A worker's entries in the registry: its id, its heartbeats, the models that it serves."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import time
from dataclasses import asdict
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from typing import Any

from shared.fleet.pool import Pool
from shared.fleet.registry import EXPIRY_S, HEARTBEAT_S, LOADING_EXPIRY_S, WorkerInfo
from shared.platform.logs import RareWarning
from shared.platform.metrics.worker import WorkerMetrics
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from worker.core.health import HealthServer
from worker.core.loop import WorkerLoop
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.worker")

_VERSION = version("flotilla")  # at import, because it reads files

_JOB_IDS = 64
"""Most job ids in a heartbeat."""
_RETRY_S = 0.25


class WorkerIdTaken(Exception):
    """Another process is the worker with this id."""


class Registration:
    """One worker process in the registry."""

    def __init__(
        self,
        registry: Registry,
        worker_id: str,
        pool: Pool,
        engine: Engine,
        metrics: WorkerMetrics,
        health: HealthServer,
    ) -> None:
        self.models: list[dict[str, Any]] = []
        """The engine's entries of /v1/models."""
        self._worker_id = worker_id
        # A guess until the engine has loaded: a worker that loads counts for its pool.
        self.pool = pool.name
        self._pool = pool
        self._loop: WorkerLoop | None = None
        self._registry = registry
        self._engine = engine
        self._metrics = metrics
        self._health = health
        self._start_s: float | None = None
        # Distinguishes this process from another worker with the same id.
        self._process = secrets.token_hex(8)

    async def reserve_id(self) -> None:
        """Reserve the id; a killed process keeps it for five heartbeats. Raises WorkerIdTaken."""
        left_s = EXPIRY_S
        try:
            while not await self._registry.reserve(self._worker_id, self._process):
                before_s, left_s = left_s, await self._registry.reserved_s(self._worker_id)
                if left_s > before_s:  # the other process is alive and has extended it
                    raise WorkerIdTaken(
                        f"FLOTILLA_WORKER_ID={self._worker_id}: a running worker has this id; "
                        "give each worker its own id, or none"
                    )
                await asyncio.sleep(_RETRY_S)
        except StoreError as error:
            log.warning("worker id not reserved, the next heartbeat tries again: %s", error)

    async def announce(self, expiry_s: float = EXPIRY_S, failure: str = "") -> None:
        """Write the worker's entry, which expires after `expiry_s`. Raises StoreError.

        `failure`: why the worker ends; empty if nothing has failed.
        """
        state, reason = self._health.status()
        loop = self._loop
        load = self._engine.load() if loop else None
        info = WorkerInfo(
            id=self._worker_id,
            pool=self.pool,
            state=state,
            engine=self._engine.kind,
            models=tuple(card["id"] for card in self.models),
            slots=self._engine.capacity.max_num_seqs if loop else 0,
            running=load.unfinished if load else 0,
            jobs=len(loop.runs) if loop else 0,
            kv_usage=load.kv_usage if load else 0.0,
            host=socket.gethostname(),
            pid=os.getpid(),
            version=_VERSION,
            reason=reason,
            start_s=self._start_s,
            job_ids=tuple(islice(loop.runs, _JOB_IDS)) if loop else (),
            clock_s=time.monotonic(),
            failure=failure,
            **(asdict(loop.runs.totals) if loop else {}),
        )
        await self._registry.announce(info, expiry_s=expiry_s)

    async def announce_if_possible(self) -> None:
        """As `announce`; if Redis is unavailable, the next heartbeat announces the worker."""
        with contextlib.suppress(StoreError):
            await self.announce()

    async def announce_loading(self) -> None:
        """As `announce_if_possible`, before the model is loaded."""
        with contextlib.suppress(StoreError):
            await self.announce(LOADING_EXPIRY_S)

    async def set_models(self, cards: list[dict[str, Any]]) -> None:
        """Announce these models from now on, and no more those of adapters that are gone."""
        gone = _adapters(self.models) - _adapters(cards)
        self.models = cards
        self._metrics.adapters.set(sum(bool(card.get("parent")) for card in cards))
        with contextlib.suppress(StoreError):
            await self._registry.forget_models(gone)
        await self.register_models()

    async def register_models(self) -> None:
        """Make the models known to the gateways, if Redis is available; heartbeats repeat it."""
        with contextlib.suppress(StoreError):
            await self._register_models()

    async def _register_models(self) -> None:
        version, weight = self._pool.version, self._pool.weight
        await self._registry.register_models(self.pool, self.models, version, weight)

    def loaded(self, models: list[dict[str, Any]]) -> None:
        """The engine has loaded these models."""
        self.models = models
        self.pool = self._pool.name_with(models[0]["id"])

    def started(self, loop: WorkerLoop) -> None:
        """The worker claims from now on: its start time is complete."""
        self._loop = loop
        self._start_s = _process_age_s()

    async def run_heartbeats(self) -> None:
        """Announce the worker until cancellation. Raises WorkerIdTaken."""
        warn = RareWarning(log)
        while True:
            try:
                if not await self._registry.reserve(self._worker_id, self._process):
                    raise WorkerIdTaken(f"another worker has taken the id {self._worker_id}")
                await self._register_models()
                await self.announce()
            except StoreError as error:
                warn("heartbeat failed: %s", error)
            await asyncio.sleep(HEARTBEAT_S)

    async def leave(self, failure: str = "") -> None:
        """Remove the worker's entries, if Redis is available; else they expire.

        With a `failure`, the last announcement names it for operators and stays until it expires;
        the id is free at once.
        """
        with contextlib.suppress(StoreError):
            if not failure:
                await self._registry.leave(self._worker_id, self._process)
            elif await self._registry.reserve(self._worker_id, self._process):
                await self.announce(failure=failure)
                await self._registry.release_id(self._worker_id, self._process)


def _adapters(cards: list[dict[str, Any]]) -> set[str]:
    return {card["id"] for card in cards if card.get("parent")}


def _process_age_s() -> float | None:
    """Seconds since this process started, imports included; None where that is unknown."""
    try:
        stat = Path("/proc/self/stat").read_text()
    except OSError:
        return None
    ticks = int(stat.rpartition(")")[2].split()[19])
    return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")

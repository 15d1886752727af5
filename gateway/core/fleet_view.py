"""This gateway's copy of the fleet in Redis: models, workers and decisions of the autoscaler."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Collection, Mapping, Set
from typing import Self

from gateway.gateway_settings import GatewaySettings
from shared.fleet import wait_estimate
from shared.fleet.limits import GATEWAY_FLEET
from shared.fleet.model_names import ModelNames, declared_models, merged
from shared.fleet.pools import Pools
from shared.fleet.registry import HEARTBEAT_S, Heartbeat, ModelInfo, WorkerInfo, without_failed
from shared.fleet.scale_decisions import Scale
from shared.fleet.wait_estimate import WaitEstimate
from shared.fleet.worker_losses import WorkerLosses
from shared.job.errors import BadRequest, ModelNotFound, NoWorker
from shared.job.states import WorkerState
from shared.platform.malformed import MalformedValues
from shared.platform.tasks import run_together
from shared.store.errors import StoreError
from shared.store.fleet_registry import Registry
from shared.store.operators import DesiredPools, PoolSwitches, ScaleStore
from shared.store.queue import Queue
from shared.store.views import alive

_REFRESH_S = HEARTBEAT_S
# An unknown model causes a refresh, but a thousand such requests do not cause a thousand.
_MIN_REFRESH_S = 0.25


class FleetView:
    """At most a few seconds old. Start `run` as a task."""

    def __init__(
        self,
        queue: Queue,
        pools: Pools | None = None,
        default_model: str = "",
        allow_fields: Collection[str] = (),
        malformed: MalformedValues | None = None,
    ) -> None:
        """`pools`: those of flotilla.yaml are known from the start, with or without workers.

        `allow_fields`: allowed for every pool, as in field_policy.py. `malformed` counts what can't
        be read.
        """
        self._allow_fields = tuple(allow_fields)
        self._pool_allows = {pool.name: pool.allow_fields for pool in pools.all} if pools else {}
        self._declared = declared_models(pools) if pools else {}
        self._default_model = default_model
        self.names = ModelNames(self._declared, default_model)
        self.models: dict[str, ModelInfo] = self.names.listed
        """Every name that a request can have -> its model, or the first of its versions."""
        self.workers: list[WorkerInfo] = []
        self.heartbeats: list[Heartbeat] = []
        """The heartbeats of the same workers."""
        self._only_ready = ""  # the only model with a ready worker, of several
        self.asks_for_unknown = True
        """An unknown model is looked for in Redis once more."""
        self.losses = WorkerLosses()
        self.switches: Mapping[str, PoolSwitches] = {}
        """Of pools that do not work as usual."""
        self.scales: dict[str, Scale] = {}
        """The last decision for each autoscaled pool."""
        self._queue = queue
        self.scale_store = ScaleStore(queue, malformed)
        self._registry = Registry(queue.servers.primary, malformed)
        self._desired = DesiredPools(queue, malformed)
        self._redis_ahead_s = time.time() - time.monotonic()  # a guess until Redis answers
        self._read_at = float("-inf")
        self._complete_at = time.monotonic()
        self._error = ""  # of the last refresh that failed
        self._refreshing = asyncio.Lock()

    @classmethod
    def of(
        cls, settings: GatewaySettings, pools: Pools, queue: Queue, malformed: MalformedValues
    ) -> Self:
        """The fleet of this queue."""
        return cls(queue, pools, settings.default_model, settings.allow_fields, malformed)

    async def run(self) -> None:
        """Refresh the copy until cancelled."""
        while True:
            try:
                await self.refresh()
            except StoreError as error:
                self._error = str(error) or type(error).__name__
            await asyncio.sleep(_REFRESH_S)

    @property
    def declared(self) -> Set[str]:
        """The models of flotilla.yaml, by their names in the registry."""
        return self._declared.keys()

    @property
    def problem(self) -> str:
        """Why the copy is outdated, in words; empty if it is not."""
        old_s = time.monotonic() - self._complete_at
        if old_s < GATEWAY_FLEET.lowest:
            return ""
        return f"models and workers were last read {old_s:.0f} s ago: {self._error[:200]}"

    async def refresh(self) -> None:
        """Read everything from Redis now. Raises StoreError."""
        self._read_at = time.monotonic()
        models = merged(self._declared, await self._registry.models())
        self.names = ModelNames(models, self._default_model)
        self.models = self.names.listed
        await self._read_workers()
        pools = sorted({model.pool for model in models.values()})
        now_s, self.scales = await self.scale_store.read(pools)
        self._redis_ahead_s = now_s - time.monotonic()
        self.losses.update(self.heartbeats, now_s)
        self.switches = await self._desired.switches(pools)
        self._complete_at = time.monotonic()

    async def refresh_workers(self) -> None:
        """Read the workers alone. Raises StoreError."""
        await self._read_workers()
        self.losses.update(self.heartbeats, self.now_s())

    async def _read_workers(self) -> None:
        heartbeats, leased = await run_together(self._registry.heartbeats(), alive(self._queue))
        for worker, _ in heartbeats:
            if worker.state is not WorkerState.STARTING and worker.id not in leased:
                self.losses.gone(worker.id, self.now_s())
        self._set_workers(heartbeats)

    def _set_workers(self, heartbeats: list[Heartbeat]) -> None:
        self.heartbeats = heartbeats
        self.workers = without_failed(heartbeats)
        ready = {worker.pool for worker in self.workers if worker.state.serving}
        self._only_ready = "" if self.names.default else self.names.only_of(ready)

    async def model(self, name: str, version: str = "") -> ModelInfo:
        """A model by a client's name for it, with or without workers.

        Empty: the default model, else the only one that is ready. Of several versions, `version`
        names one; if it is empty, each call draws one by weight. Raises ModelNotFound, NoWorker,
        BadRequest, and StoreError.
        """
        share = random.random()
        model = self.names.resolve(name or self._only_ready, version, share)
        if model is None and self.asks_for_unknown:
            await self._refresh_once()
            model = self.names.resolve(name or self._only_ready, version, share)
        if model is not None:
            return model
        if not self.models:
            raise NoWorker("No worker has registered a model yet; try again when one has loaded.")
        if not name:
            raise BadRequest(
                "`model` must name one of the fleet's models; GET /v1/models lists them.", "model"
            )
        raise ModelNotFound(self._not_found(name, version))

    def _not_found(self, name: str, version: str) -> str:
        if version and (versions := self.names.versions(name)):
            there_are = ", ".join(model.version for model in versions)
            return (
                f"The model {name[:100]!r} has no version {version[:32]!r}; versions: {there_are}."
            )
        if version and name in self.models:
            return f"The model {name[:100]!r} has no version {version[:32]!r}, nor any other."
        near = ", ".join(self.names.nearest(name[:200]))
        return f"The model {name[:100]!r} does not exist; the nearest names are: {near}."

    def allowed_fields(self, pool: str) -> Collection[str]:
        """The fields that need permission and have it, in requests to this pool."""
        return self._pool_allows.get(pool, self._allow_fields)

    async def _refresh_once(self) -> None:
        """Refresh once for all callers that wait now, `_MIN_REFRESH_S` after the last refresh."""
        called_at = time.monotonic()
        async with self._refreshing:
            if self._read_at < called_at:
                await asyncio.sleep(max(0.0, self._read_at + _MIN_REFRESH_S - called_at))
                await self.refresh()

    def now_s(self) -> float:
        """The time in Unix seconds by Redis' clock, as of the last refresh plus the time since."""
        return time.monotonic() + self._redis_ahead_s

    def wait_estimate(self, pool: str, position: int) -> WaitEstimate:
        """How long the job at `position` (from 1) of the pool may wait, and why."""
        if self.switches_of(pool).paused:
            return WaitEstimate(None, self.wait_reason(pool) or "paused by an operator")
        workers, scale = self.workers_of(pool), self.scales.get(pool)
        return wait_estimate.wait_estimate(position, workers, scale, self.now_s())

    def switches_of(self, pool: str) -> PoolSwitches:
        """What operators have asked for of the pool."""
        return self.switches.get(pool, PoolSwitches())

    def has_workers(self, pool: str) -> bool:
        """Whether any worker of the pool serves, or starts."""
        there = self.workers_of(pool)
        return any(each.state.serving or each.state is WorkerState.STARTING for each in there)

    def wait_reason(self, pool: str) -> str:
        """Why the pool's jobs wait, in words, if no worker is ready; else empty."""
        workers, scale = self.workers_of(pool), self.scales.get(pool)
        return wait_estimate.wait_reason(workers, scale, self.now_s())

    def workers_of(self, pool: str) -> list[WorkerInfo]:
        """The workers that read a queue, a pool's or an adapter's, and have not expired."""
        return [worker for worker in self.workers if worker.pool == pool]

"""The autoscaler's tick: observe each pool, decide, record the decision, act on it.

The decision itself is a pure function, gateway/ops/autoscaler/policy.py. One process at a time runs
the tick (gateway/maintenance/maintenance_tasks.py).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import httpx
from pydantic import TypeAdapter

from gateway.ops.autoscaler.actuators import actuator
from gateway.ops.autoscaler.autoscaler_settings import AutoscalerSettings
from gateway.ops.autoscaler.observation import PoolSnapshot, RateState, observe
from gateway.ops.autoscaler.policy import decide
from shared.fleet.autoscale_types import Decision, Limits, Observation, PolicyState
from shared.fleet.pool import Pool
from shared.fleet.pools import Pools
from shared.fleet.registry import ModelInfo, WorkerInfo
from shared.fleet.scale_decisions import Scale, ScalingEvent
from shared.job.lanes import pool_of
from shared.platform.malformed import MalformedValues
from shared.platform.settings import SettingsError
from shared.store.interface import StoreUnavailable
from shared.store.redis.depths import LaneDepth, depths, mean_body_bytes
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scale_store import ScaleStore, parse

log = logging.getLogger("flotilla.autoscale")


@dataclass(frozen=True, slots=True)
class _TickState:
    """What is kept of one tick until the next."""

    policy: PolicyState
    rates: RateState
    draining: list[str]
    """The names that the actuator has returned."""


_TICK_STATE = TypeAdapter(_TickState)
_malformed = MalformedValues()


async def tick(
    queue: JobQueue, registry: Registry, settings: AutoscalerSettings, loaded: Pools
) -> None:
    """One decision for each autoscaled pool of `loaded`.

    A pool that fails does not stop the others. Raises StoreError if Redis can't be reached
    (nothing is decided then, the next tick goes on), SettingsError for settings that contradict
    each other.
    """
    pools, declared = loaded.autoscaled, loaded.declared
    services = {(pool.docker_project, pool.docker_service) for pool in pools}
    if settings.autoscale_actuator == "docker" and len(services) < len(pools):
        raise SettingsError(
            "each pool that the docker actuator scales needs a `docker_service` of its own; "
            "FLOTILLA_AUTOSCALE names one service, so it takes one model"
        )
    models, workers = await registry.models(), await registry.workers()
    lanes = await depths(queue)
    for pool in pools:
        try:
            name = await _registered_name(pool, models, registry, declared=declared)
            await _PoolTick(queue, settings, pool, name).run(
                [depth for depth in lanes if pool_of(depth.pool) == name],
                [worker for worker in workers if worker.pool == name],
            )
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("the pool of %s could not be scaled", pool.served_names[0])


async def _registered_name(
    pool: Pool, models: dict[str, ModelInfo], registry: Registry, *, declared: bool
) -> str:
    """The name of the pool that serves the model; an unknown model is registered.

    `declared`: flotilla.yaml names the pool.
    """
    model = pool.served_names[0]
    if not declared and model in models:
        return pool_of(models[model].pool)
    if not declared or all(each.pool != pool.name for each in models.values()):
        await registry.declare_models(pool.name, pool.engine_names, pool.version, pool.weight)
    return pool.name


class _PoolTick:
    """One tick for one pool."""

    def __init__(
        self, queue: JobQueue, settings: AutoscalerSettings, pool: Pool, name: str
    ) -> None:
        """`name` is the pool's name in the registry."""
        assert pool.limits is not None
        self._queue = queue
        self._pool = name
        self._model = pool.served_names[0]
        self._configured = pool.limits
        self._tick_s = settings.autoscale_tick_s
        self._actuator = actuator(settings, pool)
        self._store = ScaleStore(queue.servers.primary)

    async def run(self, lanes: list[LaneDepth], workers: list[WorkerInfo]) -> None:
        """Observe, decide, record the decision, act on it."""
        before = parse(
            _TICK_STATE, await self._store.tick_state(self._pool), self._pool, _malformed
        )
        policy, rates_before = (before.policy, before.rates) if before else (None, None)
        seen, rates = observe(await self._snapshot(lanes, workers), rates_before, policy)
        chosen = await self._store.worker_range(self._pool)
        limits = chosen.applied_to(self._configured) if chosen else self._configured
        decision = decide(seen, limits, policy)
        # Recorded before acting: the decision can be read even if the actuator fails.
        draining = before.draining if before else []
        change = _change(decision, seen, policy)
        await self._write(
            seen, limits, decision, _TickState(decision.state, rates, draining), change
        )
        if change is not None:
            log.info("%s: workers wanted: %d (%s)", self._pool, decision.wanted, decision.reason)
        draining = await self._act(decision.wanted, workers, draining)
        if before is None or draining != before.draining:
            state = _TickState(decision.state, rates, draining)
            await self._write(seen, limits, decision, state, None)

    async def _snapshot(self, lanes: list[LaneDepth], workers: list[WorkerInfo]) -> PoolSnapshot:
        waiting_bytes = 0.0
        for depth in lanes:
            if depth.waiting:
                waiting_bytes += depth.waiting * await mean_body_bytes(
                    self._queue, depth.pool, depth.lane
                )
        return PoolSnapshot(
            at_s=await self._queue.servers.time_s(),
            waiting=sum(depth.waiting for depth in lanes),
            waiting_bytes=waiting_bytes,
            oldest_s=max((depth.oldest_s for depth in lanes), default=0.0),
            running=sum(depth.in_progress for depth in lanes),
            workers=workers,
        )

    async def _write(
        self,
        seen: Observation,
        limits: Limits,
        decision: Decision,
        tick_state: _TickState,
        change: ScalingEvent | None,
    ) -> None:
        scale = Scale(
            pool=self._pool,
            model=self._model,
            wanted=decision.wanted,
            reason=decision.reason,
            wait_s=decision.wait_s,
            seen=seen,
            limits=limits,
            tick_s=self._tick_s,
            configured=(self._configured.min, self._configured.max),
        )
        await self._store.write(scale, _TICK_STATE.dump_json(tick_state), change)

    async def _act(self, wanted: int, workers: list[WorkerInfo], draining: list[str]) -> list[str]:
        try:
            return await self._actuator.reconcile(wanted, workers, draining)
        except (OSError, httpx.HTTPError) as error:
            log.warning(
                "%s: %d workers are wanted, but the actuator failed: %s", self._pool, wanted, error
            )
            return draining


def _change(decision: Decision, seen: Observation, last: PolicyState | None) -> ScalingEvent | None:
    """An entry for the history, if this decision changes something."""
    before = last.wanted if last else None
    if before == decision.wanted:
        return None
    return ScalingEvent(seen.at_s, before, decision.wanted, decision.reason, seen)

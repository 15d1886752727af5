"""The autoscaler's tick: observe each pool, decide, record the decision, act on it.

One process at a time runs the tick (gateway/maintenance/maintenance_tasks.py).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace

import httpx

from gateway.ops.autoscaler.autoscaler_settings import AutoscalerSettings
from gateway.ops.autoscaler.docker import Docker
from gateway.ops.autoscaler.formula import Decided, decide, observe
from shared.fleet.pool import Pool
from shared.fleet.pools import Pools
from shared.fleet.registry import Heartbeat, ModelInfo, unknown_card, without_failed
from shared.fleet.scale_decisions import Scale, ScalingEvent
from shared.platform.settings import SettingsError
from shared.store.errors import StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.operators import ScaleStore
from shared.store.queue import Queue
from shared.store.views import LaneDepth, depths

log = logging.getLogger("flotilla.autoscale")


async def tick(
    queue: Queue, registry: Registry, settings: AutoscalerSettings, loaded: Pools
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
    models, heartbeats = await registry.models(), await registry.heartbeats()
    lanes = await depths(queue)
    for pool in pools:
        try:
            name = await _registered_name(pool, models, registry, declared=declared)
            await _scale(
                queue,
                settings,
                pool,
                name,
                [depth for depth in lanes if depth.pool == name],
                [each for each in heartbeats if each.worker.pool == name],
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
        return models[model].pool
    if not declared or all(each.pool != pool.name for each in models.values()):
        cards = [unknown_card(name) for name in pool.engine_names]
        await registry.declare_models(pool.name, cards, pool.version, pool.weight)
    return pool.name


async def _scale(
    queue: Queue,
    settings: AutoscalerSettings,
    pool: Pool,
    name: str,
    lanes: Sequence[LaneDepth],
    heartbeats: Sequence[Heartbeat],
) -> None:
    """One tick for one pool; `name` is its name in the registry."""
    assert pool.limits is not None
    store = ScaleStore(queue)
    _, scales = await store.read([name])
    before, last = scales.get(name), None
    if before is not None:
        last = Decided(before.wanted, before.reason, before.seen, before.needs, before.busy_at_s)
    seen = observe(
        await queue.servers.primary.time(), lanes, heartbeats, last.seen if last else None
    )
    chosen = await store.ranges.get(name)
    limits = chosen.applied_to(pool.limits) if chosen else pool.limits
    decided = decide(seen, limits, last)
    scale = Scale(
        pool=name,
        model=pool.served_names[0],
        wanted=decided.wanted,
        reason=decided.why,
        seen=seen,
        limits=limits,
        tick_s=settings.autoscale_tick_s,
        configured=(pool.limits.min, pool.limits.max),
        needs=decided.needs,
        busy_at_s=decided.busy_at_s,
        draining=before.draining if before else (),
    )
    change = None
    if last is None or last.wanted != decided.wanted:
        wanted_before = last.wanted if last else None
        change = ScalingEvent(seen.at_s, wanted_before, decided.wanted, decided.why, seen)
        log.info("%s: workers wanted: %d (%s)", name, decided.wanted, decided.why)
    # Recorded before acting: the decision can be read even if the actuator fails.
    await store.write(scale, change)
    if settings.autoscale_actuator != "docker":
        return  # `flotilla up` or KEDA reads the decision and acts on it
    docker = Docker(settings.docker_host, pool.docker_project, pool.docker_service)
    try:
        now_drain = await docker.reconcile(
            decided.wanted, without_failed(heartbeats), scale.draining
        )
    except (OSError, httpx.HTTPError) as error:
        log.warning("%s: %d workers are wanted, but Docker failed: %s", name, decided.wanted, error)
        return
    if tuple(now_drain) != scale.draining:
        await store.write(replace(scale, draining=tuple(now_drain)), None)

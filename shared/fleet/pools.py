"""The pools of a fleet: model, engine, queue and autoscaling of each, as every process reads them.

A pool is a group of workers that serve the same model and share a queue. flotilla.yaml lists the
pools of a fleet; without it the variables of a process describe one pool, its own, and
`FLOTILLA_AUTOSCALE` may name more.
"""

from __future__ import annotations

import shlex

from shared.fleet.autoscale_types import Limits
from shared.fleet.engine_args import adapters_argv, argv_of, sampling_argv
from shared.fleet.pool import Pool, Pools, pool_name
from shared.platform.setting_groups.pool import DEMO_MODEL, parse_autoscale, split_names
from shared.platform.setting_groups.pool_entry import PoolEntry
from shared.platform.settings import Settings, SettingsError

__all__ = ["Pool", "Pools", "load_pools", "pool_name", "worker_settings"]


def load_pools(settings: Settings) -> Pools:
    """The pools that the settings describe. Raises SettingsError."""
    if settings.pools:
        return _declared(settings)
    ranges = parse_autoscale(settings.autoscale)
    demo = "simulated" if settings.engine == "simulated" else DEMO_MODEL
    # What a worker announces counts in the end: vLLM's own arguments may name the model too.
    first, *aliases = split_names(settings.served_model_name) or [settings.model or demo]

    def pool(served_model_name: str) -> Pool:
        workers = ranges.get(served_model_name)
        own = served_model_name == first
        return Pool(
            given_name=settings.pool,
            served_model_name=served_model_name,
            aliases=tuple(aliases) if own else (),
            model=settings.model if own else "",
            engine=settings.engine,
            engine_args=settings.engine_args,
            workers=workers or (1, 1),
            startup_timeout_s=settings.startup_timeout_s,
            max_queue_depth=settings.max_queue_depth,
            autoscale=_limits(settings, *workers) if workers else None,
            docker_project=settings.docker_project,
            docker_service=settings.docker_service,
        )

    return Pools(all=(pool(first), *(pool(name) for name in ranges if name != first)))


def worker_settings(settings: Settings) -> Settings:
    """The settings as a worker reads them: with those of its pool, as if from variables.

    Raises SettingsError.
    """
    if not settings.pools:
        return settings
    own = load_pools(settings).own
    values = {
        "pool": own.name,
        "model": own.model,
        "served_model_name": ",".join(own.engine_names),
        "engine": own.engine,
        "engine_args": own.engine_args,
        "startup_timeout_s": own.startup_timeout_s,
        "hooks": ",".join(own.hooks) or settings.hooks,
        "allow_fields": (*settings.allow_fields, *own.allow_fields),
    }
    return settings.model_copy(update=values)


def _declared(settings: Settings) -> Pools:
    """The pools of flotilla.yaml. Raises SettingsError."""
    pools = [_pool(name, entry, settings) for name, entry in settings.pools.items()]
    _check_names(pools)
    found = Pools(all=tuple(pools), own_name=settings.pool, declared=True)
    if settings.pool:
        _ = found.own
    return found


def _pool(name: str, entry: PoolEntry, settings: Settings) -> Pool:
    engine = entry.engine or settings.engine
    demo = "simulated" if engine == "simulated" else DEMO_MODEL
    names = entry.served_names or (entry.model or demo,)
    try:
        argv = [
            *sampling_argv(entry.sampling),
            *adapters_argv(entry.adapters),
            *argv_of(entry.engine_args),
        ]
    except ValueError as error:
        raise SettingsError(f"{settings.config}: pools.{name}: {error}") from error
    least, most = entry.range
    return Pool(
        given_name=name,
        served_model_name=names[0],
        aliases=names[1:],
        version=entry.version,
        weight=entry.weight,
        model=entry.model,
        engine=engine,
        engine_args=shlex.join(argv),
        adapters=tuple(entry.adapters),
        workers=(least, most),
        startup_timeout_s=entry.startup_timeout_s or settings.startup_timeout_s,
        max_queue_depth=entry.max_queue_depth or settings.max_queue_depth,
        deadline_s=entry.deadline_s,
        queue_deadline_s=entry.queue_deadline_s,
        run_deadline_s=entry.run_deadline_s,
        allow_fields=entry.allow_fields,
        hooks=entry.hooks,
        autoscale=_limits(settings, least, most, entry) if least < most else None,
        docker_project=entry.docker_project or settings.docker_project,
        docker_service=entry.docker_service or settings.docker_service,
    )


def _check_names(pools: list[Pool]) -> None:
    """Raises SettingsError if a client's name for a model would not lead to one pool."""
    seen: dict[str, str] = {}
    versions: dict[str, bool] = {}
    for pool in pools:
        adapters = (f"{name}:{pool.version}" if pool.version else name for name in pool.adapters)
        unique = pool.engine_names[len(pool.served_names) :] if pool.version else pool.served_names
        for name in (*unique, *adapters):
            if name in seen:
                raise SettingsError(
                    f"the pools {seen[name]} and {pool.name} both serve {name!r}: give each a "
                    "`version` of its own, or other names"
                )
            seen[name] = pool.name
        for name in pool.served_names:
            if versions.setdefault(name, bool(pool.version)) is not bool(pool.version):
                raise SettingsError(
                    f"some of the pools that serve {name!r} have a `version`: all of them need one"
                )


def _limits(settings: Settings, least: int, most: int, entry: PoolEntry | None = None) -> Limits:
    def of(name: str) -> float:
        own = getattr(entry.autoscale, name) if entry is not None else None
        value: float = getattr(settings, f"autoscale_{name}") if own is None else own
        return value

    return Limits(
        min=least,
        max=most,
        target_wait_s=of("target_wait_s"),
        utilization=of("utilization"),
        down_after_s=of("down_after_s"),
        idle_s=of("idle_s"),
    )

"""The pools of a fleet, as a process reads them once, when it starts.

flotilla.yaml lists the pools of a fleet; without it the variables of a process describe one pool,
its own, and `FLOTILLA_AUTOSCALE` may name more.
"""

from __future__ import annotations

import shlex
from typing import Any

from pydantic import BaseModel, ConfigDict

from shared.fleet.engine_args import adapters_argv, argv_of, sampling_argv
from shared.fleet.pool import DEMO_MODEL, Pool, PoolDefaults, PoolEntry
from shared.fleet.pool_settings import PoolSettings, parse_autoscale
from shared.fleet.scale_decisions import Limits
from shared.platform.settings import PREFIX, SettingsError

_OF_ONE_POOL = ("model", "served_model_name", "engine_args", "autoscale")


class Pools(BaseModel):
    """The pools in a process's settings; the registry may list more."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    all: tuple[Pool, ...]
    """At least one."""
    own_name: str = ""
    """Of the pool that a worker joins; empty: the only one."""
    declared: bool = False
    """flotilla.yaml lists them, so each exists, also without workers."""

    @property
    def own(self) -> Pool:
        """The pool that a worker joins. Raises SettingsError if it is not clear which."""
        if len(self.all) == 1 or not self.declared:
            return self.all[0]
        for pool in self.all:
            if pool.name == self.own_name:
                return pool
        names = ", ".join(pool.name for pool in self.all)
        raise SettingsError(f"{PREFIX}POOL={self.own_name!r} must name the worker's pool: {names}")

    @property
    def others(self) -> tuple[Pool, ...]:
        """All but the process's own."""
        return self.all[1:]

    @property
    def max_depths(self) -> dict[str, int]:
        """How many jobs may wait in one lane and shard of a pool, for pools that state it."""
        return {pool.name: pool.max_queue_depth for pool in self.all if self.declared}

    @property
    def autoscaled(self) -> tuple[Pool, ...]:
        """The pools whose number of workers the autoscaler decides."""
        return tuple(pool for pool in self.all if pool.limits is not None)


def load_pools(settings: PoolSettings) -> Pools:
    """The pools that the settings describe. Raises SettingsError."""
    return _of_file(settings) if settings.pools else _of_variables(settings)


def _of_variables(settings: PoolSettings) -> Pools:
    ranges = parse_autoscale(settings.autoscale)
    demo = settings.model or _demo(settings.engine)
    first, *aliases = dict.fromkeys(settings.served_model_name or (demo,))

    def pool(served_name: str) -> Pool:
        least, most = ranges.get(served_name, (1, 1))
        own = served_name == first
        entry = PoolEntry(
            model=settings.model if own else "",
            served_names=(served_name, *(aliases if own else ())),
            engine_args=settings.engine_args,
            min_workers=least,
            max_workers=most,
        )
        return _pool(settings.pool, entry, settings, scaled=served_name in ranges)

    return Pools(all=(pool(first), *(pool(name) for name in ranges if name != first)))


def _of_file(settings: PoolSettings) -> Pools:
    for name in _OF_ONE_POOL:
        if getattr(settings, name):
            raise SettingsError(
                f"`{name}` describes one pool, but {settings.config or 'FLOTILLA_POOLS'} lists the "
                f"pools: set it there, or {PREFIX}POOLS__<POOL>__<KEY> in its place"
            )
    pools = []
    for name, entry in settings.pools.items():
        try:
            pools.append(_pool(name, entry, settings, scaled=entry.range[0] < entry.range[1]))
        except ValueError as error:
            raise SettingsError(f"{settings.config}: pools.{name}: {error}") from error
    _check_names(pools)
    found = Pools(all=tuple(pools), own_name=settings.pool, declared=True)
    if settings.pool:
        _ = found.own
    return found


def _pool(name: str, entry: PoolEntry, settings: PoolSettings, *, scaled: bool) -> Pool:
    """An entry with what the fleet's settings add. Raises ValueError for wrong arguments."""
    added: dict[str, Any] = {
        key: getattr(settings, key)
        for key in PoolDefaults.model_fields
        if key not in entry.model_fields_set
    }
    arguments = [
        *sampling_argv(entry.sampling),
        *adapters_argv(entry.adapters),
        *argv_of(entry.engine_args),
    ]
    engine = added.get("engine", entry.engine)
    return Pool(
        **dict(entry)
        | added
        | {
            "given_name": name,
            "served_names": entry.served_names or (entry.model or _demo(engine),),
            "engine_args": shlex.join(arguments),
            "limits": _limits(settings, entry) if scaled else None,
            "allow_fields": (*settings.allow_fields, *entry.allow_fields),
        }
    )


def _demo(engine: str) -> str:
    # What a worker announces counts in the end: vLLM's own arguments may name the model too.
    return "simulated" if engine == "simulated" else DEMO_MODEL


def _limits(settings: PoolSettings, entry: PoolEntry) -> Limits:
    names = type(entry.autoscale).model_fields
    aims = {name: getattr(settings, f"autoscale_{name}") for name in names}
    least, most = entry.range
    return Limits(least, most, **aims | entry.autoscale.model_dump(exclude_none=True))


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

"""The autoscaler's decisions in Redis: its tick writes them, all other processes read them.

Versions mix during a rolling update: a record that can't be read is treated as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from shared.fleet.autoscale_types import Limits, Observation
from shared.fleet.limits import AUTOSCALER_SILENT
from shared.platform.malformed import MalformedValues
from shared.store.redis import keys
from shared.store.redis.redis_client import UNAVAILABLE, Redis

HISTORY = 100
"""Decisions kept for each pool."""
_STALE_TICKS = 5

_Record = TypeVar("_Record")


@dataclass(frozen=True, slots=True)
class Scale:
    """How many workers a pool should have, and why. Times are by Redis' clock."""

    pool: str
    model: str
    wanted: int
    reason: str
    wait_s: float | None
    """What a job submitted now has to wait; None: not known."""
    seen: Observation
    limits: Limits
    tick_s: float
    """Between two decisions."""
    configured: tuple[int, int] | None = None
    """(least, most) workers by the settings; `limits` may have an operator's WorkerRange."""

    @property
    def at_s(self) -> float:
        """When it was decided, Unix seconds."""
        return self.seen.at_s

    def stale(self, now_s: float) -> bool:
        """The autoscaler has stopped updating it: do not act on it."""
        return now_s - self.at_s > max(AUTOSCALER_SILENT.lowest, _STALE_TICKS * self.tick_s)


@dataclass(frozen=True, slots=True)
class WorkerRange:
    """An operator's own range of workers for a pool, in place of the settings' one."""

    least: int
    most: int
    configured: tuple[int, int] | None = None
    """The settings' range that it replaces. Once they have another one, this range ends."""

    def applied_to(self, limits: Limits) -> Limits:
        """The pool's limits with this range; unchanged where the range has ended."""
        if self.configured not in (None, (limits.min, limits.max)):
            return limits
        return replace(limits, min=self.least, max=self.most)


@dataclass(frozen=True, slots=True)
class ScalingEvent:
    """A decision that changed how many workers are wanted."""

    at_s: float
    before: int | None
    """None: it was the first one."""
    wanted: int
    reason: str
    seen: Observation


SCALE = TypeAdapter(Scale)
SCALING_EVENT = TypeAdapter(ScalingEvent)
_WORKER_RANGE = TypeAdapter(WorkerRange)


class ScaleStore:
    """Reads and writes the decisions. Its methods raise redis' errors."""

    def __init__(self, redis: Redis, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts the records that can't be read; None: they are logged only."""
        # redis-py types every reply as bytes or str; ours are bytes.
        self._redis: Any = redis
        self._malformed = malformed or MalformedValues()

    async def read(self, pools: Sequence[str]) -> tuple[float, dict[str, Scale]]:
        """The time by Redis' clock, and the last decision for each pool that has one."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.time()
        for pool in pools:
            pipe.hget(keys.scale(pool), "scale")
        now, *raws = await pipe.execute(raise_on_error=False)
        if isinstance(now, Exception):
            raise now
        seconds, micros = now
        found = {
            pool: parse(SCALE, raw, pool, self._malformed)
            for pool, raw in zip(pools, raws, strict=True)
        }
        now_s = int(seconds) + int(micros) / 1e6
        return now_s, {pool: scale for pool, scale in found.items() if scale is not None}

    async def tick_state(self, pool: str) -> bytes | None:
        """What the last tick left for the next one, as JSON."""
        tick_state: bytes | None = await self._redis.hget(keys.scale(pool), "tick_state")
        return tick_state

    async def worker_range(self, pool: str) -> WorkerRange | None:
        """The operator's range of a pool; None if there is none."""
        raw = await self._redis.hget(keys.scale(pool), "range")
        return parse(_WORKER_RANGE, raw, pool, self._malformed)

    async def set_worker_range(self, pool: str, chosen: WorkerRange) -> None:
        """Store an operator's range; the next tick applies it."""
        await self._redis.hset(keys.scale(pool), "range", _WORKER_RANGE.dump_json(chosen))

    async def write(self, scale: Scale, tick_state: bytes, change: ScalingEvent | None) -> None:
        """Store a tick's decision; `change` is added to the history."""
        pipe = self._redis.pipeline(transaction=True)
        key = keys.scale(scale.pool)
        pipe.hset(key, mapping={"scale": SCALE.dump_json(scale), "tick_state": tick_state})
        if change is not None:
            pipe.lpush(keys.scaling_events(scale.pool), SCALING_EVENT.dump_json(change))
            pipe.ltrim(keys.scaling_events(scale.pool), 0, HISTORY - 1)
        await pipe.execute()

    async def history(self, pool: str, count: int = HISTORY) -> list[ScalingEvent]:
        """The last decisions that changed something, newest first."""
        raws = await self._redis.lrange(keys.scaling_events(pool), 0, count - 1)
        found = [parse(SCALING_EVENT, raw, pool, self._malformed) for raw in raws]
        return [scaling for scaling in found if scaling is not None]


def parse(
    adapter: TypeAdapter[_Record],
    raw: bytes | Exception | None,
    pool: str,
    malformed: MalformedValues,
) -> _Record | None:
    """A record of a pool; None if there is none, or if it can't be read.

    Another version may have written it. Raises `raw` if it is an error of the connection.
    """
    if raw is None:
        return None
    if isinstance(raw, UNAVAILABLE):
        raise raw
    try:
        if isinstance(raw, Exception):  # the key has another type
            raise TypeError(str(raw))
        return adapter.validate_json(raw)
    except (ValueError, TypeError) as error:
        malformed.skip("scale", f"pool {pool[:100]!r}", error)
        return None

"""The autoscaler's decisions in Redis: its tick writes them, all other processes read them.

Versions mix during a rolling update: a record that can't be read is treated as missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from pydantic import TypeAdapter

from shared.fleet.scale_decisions import (
    SCALE,
    SCALING_EVENT,
    WORKER_RANGE,
    Scale,
    ScalingEvent,
    WorkerRange,
)
from shared.platform.malformed import MalformedValues
from shared.store.redis import keys

HISTORY = 100
"""Decisions kept for each pool."""

_Record = TypeVar("_Record")


class ScaleStore:
    """Reads and writes the decisions. Its methods raise StoreError."""

    def __init__(self, redis: Any, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts the records that can't be read; None: they are logged only."""
        self._redis = redis
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
        return parse(WORKER_RANGE, raw, pool, self._malformed)

    async def set_worker_range(self, pool: str, chosen: WorkerRange) -> None:
        """Store an operator's range; the next tick applies it."""
        await self._redis.hset(keys.scale(pool), "range", WORKER_RANGE.dump_json(chosen))

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

    Another version may have written it.
    """
    if raw is None:
        return None
    try:
        if isinstance(raw, Exception):  # the key has another type
            raise TypeError(str(raw))
        return adapter.validate_json(raw)
    except (ValueError, TypeError) as error:
        malformed.skip("scale", f"pool {pool[:100]!r}", error)
        return None

"""What operators have asked for of each pool: a hash that gateways write and workers read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from shared.fleet.desired_pool import DesiredPool, Switches
from shared.platform.malformed import MalformedValues
from shared.store.redis import keys

_PAUSED = b"paused"
_INTAKE_STOPPED = b"intake_stopped"
_ADAPTER = b"adapter "


class DesiredPools:
    """Reads and writes it. The methods raise StoreError."""

    def __init__(self, redis: Any, malformed: MalformedValues | None = None) -> None:
        """`malformed` counts what can't be read; None: it is logged only."""
        self._redis = redis
        self._malformed = malformed or MalformedValues()

    async def read(self, pool: str) -> DesiredPool:
        """What is asked for of the pool. Malformed parts are skipped."""
        raw: dict[bytes, bytes] = await self._redis.hgetall(keys.desired(pool))
        adapters = {}
        for name, value in sorted(raw.items()):
            if not name.startswith(_ADAPTER):
                continue
            try:
                options = json.loads(value)
                if not isinstance(options["lora_path"], str):
                    raise TypeError("the path is no text")
                adapters[name.removeprefix(_ADAPTER).decode()] = options
            except (ValueError, TypeError, LookupError, RecursionError) as error:
                self._malformed.skip("adapter", repr(name[:100]), error)
        return DesiredPool(_PAUSED in raw, _INTAKE_STOPPED in raw, adapters)

    async def switches(self, pools: Sequence[str]) -> Switches:
        """Which of these pools are paused, and for which intake is stopped."""
        pipe = self._redis.pipeline(transaction=False)
        for pool in pools:
            pipe.hmget(keys.desired(pool), _PAUSED, _INTAKE_STOPPED)
        replies = await pipe.execute(raise_on_error=False)
        found: tuple[set[str], set[str]] = (set(), set())
        for pool, reply in zip(pools, replies, strict=True):
            if isinstance(reply, Exception):  # the key is not a hash
                self._malformed.skip("desired", f"pool {pool[:100]!r}", reply)
                continue
            for names, value in zip(found, reply, strict=True):
                if value is not None:
                    names.add(pool)
        return Switches(*map(frozenset, found))

    async def pause(self, pool: str) -> None:
        """Its workers shall claim nothing."""
        await self._redis.hset(keys.desired(pool), _PAUSED, 1)

    async def stop_intake(self, pool: str) -> None:
        """Gateways shall refuse new requests for it."""
        await self._redis.hset(keys.desired(pool), _INTAKE_STOPPED, 1)

    async def resume(self, pool: str) -> None:
        """Its workers shall claim jobs, and gateways accept requests."""
        await self._redis.hdel(keys.desired(pool), _PAUSED, _INTAKE_STOPPED)

    async def add_adapter(self, pool: str, options: Mapping[str, Any], *, replace: bool) -> bool:
        """Its workers shall hold this adapter; False if there is one of this name already."""
        field_name = _ADAPTER + options["lora_name"].encode()
        kept = json.dumps(dict(options))
        if replace:
            await self._redis.hset(keys.desired(pool), field_name, kept)
            return True
        return bool(await self._redis.hsetnx(keys.desired(pool), field_name, kept))

    async def remove_adapter(self, pool: str, name: str) -> bool:
        """Its workers shall not hold this adapter; False if none was asked for."""
        return bool(await self._redis.hdel(keys.desired(pool), _ADAPTER + name.encode()))

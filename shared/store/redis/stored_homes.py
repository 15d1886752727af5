"""The home shards of a pool's workers on a cluster: a hash, of which each worker writes its own."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from shared.job.home_shards import Homes
from shared.store.redis import keys

_EXPIRY_S = 3600
"""After the last look of any worker of the pool."""


class StoredHomes:
    """Reads and writes them. The methods raise StoreError."""

    def __init__(self, redis: Any, pool: str) -> None:
        """`redis`: the primary's client."""
        self._redis = redis
        self._key = keys.homes(pool)

    async def read(self, worker_id: str) -> Homes:
        """Those of this worker and of the other registered ones. Removes those of other workers."""
        pipe = self._redis.pipeline(transaction=False)
        pipe.hgetall(self._key)
        pipe.smembers(keys.WORKERS)
        pipe.expire(self._key, _EXPIRY_S)
        stored, registered, _ = await pipe.execute()
        gone = stored.keys() - registered - {worker_id.encode()}
        if gone:
            await self._redis.hdel(self._key, *gone)
        found = {
            worker.decode(errors="replace"): [
                int(each) for each in shards.split(b",") if each.isdigit()
            ]
            for worker, shards in stored.items()
            if worker not in gone
        }
        found.setdefault(worker_id, [])
        return found

    async def write(self, worker_id: str, shards: Collection[int]) -> None:
        """Replace this worker's."""
        await self._redis.hset(self._key, worker_id, ",".join(map(str, shards)))

    async def remove(self, worker_id: str) -> None:
        """The worker claims nothing more."""
        await self._redis.hdel(self._key, worker_id)

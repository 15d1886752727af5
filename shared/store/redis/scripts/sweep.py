"""`sweep`: delete index entries of expired jobs, consumers and slots of workers that are gone."""

from __future__ import annotations

from shared.job.lanes import LANES
from shared.store.redis.scripts.runner import Scripts


async def call(scripts: Scripts, shard: int, *, limit: int, dead_consumer_s: float) -> int:
    """How many entries and consumers were deleted.

    At most `limit` jobs; a consumer without entries is dead after `dead_consumer_s` of silence.
    """
    arguments = (limit, int(dead_consumer_s * 1000), *LANES)
    return int(await scripts.run("sweep", shard, arguments))

"""`remove_item`: delete one item of a conversation."""

from __future__ import annotations

from shared.store.redis.scripts.extend_conversation import Extended
from shared.store.redis.scripts.runner import Scripts


async def call(
    scripts: Scripts, shard: int, *, conversation: str, item: str, ttl_s: float
) -> Extended:
    """The status is OK, GONE or BUSY. Raises redis' errors."""
    arguments = conversation, item, int(ttl_s * 1000)
    return Extended.parse(await scripts.run("remove_item", shard, arguments))

"""`delete`: delete a job that has ended, or a conversation, before it expires."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def call(scripts: Scripts, shard: int, thing: str) -> bool:
    """False if there is nothing with this id, or a job that has not ended. Raises redis' errors."""
    return bool(await scripts.run("delete", shard, (thing,)))

"""`drop_letter`: delete a dead letter."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def call(scripts: Scripts, shard: int, *, letter: str) -> bool:
    """False if there is none. `letter` is the id of its stream entry. Raises redis' errors."""
    return bool(await scripts.run("drop_letter", shard, (letter,)))

"""`abandon`: take a gateway that is gone out of the watchers of a queue's jobs, part by part."""

from __future__ import annotations

from shared.store.redis.scripts.runner import Scripts


async def call(
    scripts: Scripts, shard: int, *, gateway: str, queue: str, after: str, limit: int
) -> tuple[str, int] | None:
    """Where the next call goes on (empty: nowhere), and how many jobs the gateway watched.

    None if the gateway receives frames there, so that it is not gone. `queue`: `<pool>:<lane>`.
    """
    reply = await scripts.run("abandon", shard, (gateway, queue, after, limit))
    return None if reply is None else (reply[0].decode(), reply[1])

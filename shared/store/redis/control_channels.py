"""The control channels of workers: who listens, and messages to several."""

from __future__ import annotations

from collections.abc import Iterable

from shared.store.redis import keys
from shared.store.redis.servers import Servers


async def listening(servers: Servers, workers: Iterable[str], server: int = 0) -> set[str]:
    """Those of the workers that are subscribed to their channels. Raises redis' errors."""
    asked = list(workers)
    if not asked:
        return set()
    counts = await servers.all[server].pubsub_numsub(*map(keys.control_channel, asked))
    return {worker for worker, (_, n) in zip(asked, counts, strict=True) if n}


async def send(servers: Servers, workers: Iterable[str], message: bytes) -> None:
    """Publish a message on the workers' channels. Raises redis' errors."""
    # A worker subscribes to its channel on each server.
    pipeline = servers.all[0].pipeline(transaction=False)
    for worker in workers:
        pipeline.publish(keys.control_channel(worker), message)
    await pipeline.execute()

"""The dead letters: data that could not be read, and jobs that are out of attempts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from shared.platform.redis_client import is_wrong_type
from shared.protocol import keys
from shared.queue.job_queue import JobQueue

KINDS = ("attempts", "entry", "field", "job", "key", "log", "member", "steps")
"""What can be set aside: a job that is out of attempts, and kinds of unreadable data."""


class DeadLetters(NamedTuple):
    """How many there are."""

    kept: int
    """In the streams of all shards, which are trimmed."""
    written: Mapping[str, int]
    """Ever written, by what was set aside: see `KINDS`. Without those that are 0."""


async def count(queue: JobQueue) -> DeadLetters:
    """Count them. Raises redis' errors if any server is away."""
    pipeline = queue.servers.pipeline()
    for shard in range(queue.shards):
        pipeline.of(shard).xlen(keys.dead_letters(shard))
        pipeline.of(shard).hgetall(keys.dead_letter_counts(shard))
    kept, written = 0, Counter[str]()
    replies = iter(await pipeline.execute(raise_on_error=False))
    for length, counts in zip(replies, replies, strict=True):
        kept += _checked(length) or 0
        for what, times in (_checked(counts) or {}).items():
            written[what.decode(errors="replace")] += int(times)
    return DeadLetters(kept, written)


def _checked(reply: Any) -> Any:
    """The reply; None if the key is of the wrong type. Raises other errors."""
    if is_wrong_type(reply):
        return None
    if isinstance(reply, Exception):
        raise reply
    return reply

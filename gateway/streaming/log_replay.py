"""Reads the log of a job in Redis for a reader that lacks entries."""

from __future__ import annotations

from typing import Protocol

from gateway.streaming.entry_order import EntryOrder
from gateway.streaming.log_event import LogEvent, ReadMode
from shared.platform.redis_client import RedisError
from shared.protocol.frames import FrameKind
from shared.protocol.job_log import Entry
from shared.queue.job_queue import LogPart


class LogSource(Protocol):
    """The queue, as far as it is read here. The methods raise redis' errors."""

    async def read_log(self, job_id: str, after: int) -> LogPart:
        """The entries behind number `after`."""

    async def last_entry(self, job_id: str) -> Entry | None:
        """The last entry; None if there is none."""


async def replay(
    source: LogSource, job_id: str, mode: ReadMode, order: EntryOrder
) -> list[LogEvent]:
    """The events that follow those in `order`, which is moved on.

    Raises redis' errors, and StreamReset if the log does not go on where `order` stands.
    """
    if mode is ReadMode.END:
        last = await source.last_entry(job_id)
        order.ended = last is not None and bool(last.end)
        return [LogEvent(last.seq, FrameKind.ENDED, b"")] if last is not None and last.end else []
    after = order.begin_replay()
    try:
        generation, entries = await source.read_log(job_id, after)
        if after and generation != order.generation:
            after = 0
            generation, entries = await source.read_log(job_id, after)
        if after and not entries:
            order.check_last(await source.last_entry(job_id))
    except (RedisError, OSError):
        order.read_whole()  # the Redis that answers next may have lost writes
        raise
    return order.add_part(mode, after, generation, entries)

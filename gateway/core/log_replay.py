"""Reads the log of a job in Redis for a reader that lacks entries."""

from __future__ import annotations

from typing import NamedTuple

from gateway.core.entry_order import EntryOrder
from gateway.core.log_event import LogEvent, ReadMode
from shared.job.frames import FrameKind
from shared.store.interface import Store, StoreError


class Replayed(NamedTuple):
    """Events from the log."""

    events: list[LogEvent]
    more: bool = False
    """Others follow them in the log."""


async def replay(
    source: Store, job_id: str, mode: ReadMode, order: EntryOrder, most_bytes: int
) -> Replayed:
    """The events that follow those in `order`, which is moved on; none while the log is compared.

    `most_bytes`: of the log, about. Raises StoreError, and StreamReset if the log does not go on
    where `order` stands.
    """
    if mode is ReadMode.END:
        last = await source.last_entry(job_id)
        order.ended = last is not None and bool(last.end)
        ended = last is not None and last.end
        return Replayed([LogEvent(last.seq, FrameKind.ENDED, b"")] if last and ended else [])
    after = order.begin_replay()
    try:
        generation, entries, more, _ = await source.read_log(job_id, after, most_bytes)
        if after and generation != order.generation:
            order.read_whole()
            after = order.begin_replay()
            generation, entries, more, _ = await source.read_log(job_id, after, most_bytes)
        if after and not entries:
            order.check_last(await source.last_entry(job_id))
    except StoreError:
        order.read_whole()  # the Redis that answers next may have lost writes
        raise
    return Replayed(order.add_part(mode, generation, entries, more=more), more)

"""Reads the log of a job in Redis for a reader that lacks entries."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from gateway.core.entry_order import EntryOrder
from gateway.core.log_event import LogEvent, ReadMode
from shared.job.frames import FrameKind
from shared.job.job_log import Entry
from shared.job.replies import LogPart
from shared.store.interface import StoreError


class LogSource(Protocol):
    """The queue, as far as it is read here. The methods raise redis' errors."""

    async def read_log(self, job_id: str, after: int, most_bytes: int) -> LogPart:
        """The entries behind number `after`, or a part of them of about `most_bytes`."""

    async def last_entry(self, job_id: str) -> Entry | None:
        """The last entry; None if there is none."""


class Replayed(NamedTuple):
    """Events from the log."""

    events: list[LogEvent]
    more: bool = False
    """Others follow them in the log."""


async def replay(
    source: LogSource, job_id: str, mode: ReadMode, order: EntryOrder, most_bytes: int
) -> Replayed:
    """The events that follow those in `order`, which is moved on; none while the log is compared.

    `most_bytes`: of the log, about. Raises redis' errors, and StreamReset if the log does not go on
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

"""How a run continues a job of an earlier worker: its log is read before the engine is called.

A job that can't be continued begins anew if no client has seen any of it, else it fails: the
script `restart` decides.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol, TypeVar

from shared.job.job import LeasedJob
from shared.job.job_log import Entry
from shared.job.replies import LogPart
from shared.platform.backoff import Backoff
from shared.store.redis.redis_client import UNAVAILABLE, RedisError, unwritable
from worker.core.continued_output import ContinuedOutputBuffer
from worker.core.sent_output import Continuation, ContinuationReader, UnusableLog

log = logging.getLogger("flotilla.job")

ReplyT = TypeVar("ReplyT")

_RETRY_BASE_S = 0.05
_RETRY_CAP_S = 0.25
# So many calls are made to give up a job; then its lease runs out, and another worker gives it up.
_TRIES_TO_GIVE_UP = 10
_ENTRIES_AT_ONCE = 256
"""A few milliseconds."""
_OUTCOME = "not_continued"
"""The attempt's outcome in the job's history."""


class LogQueue(Protocol):
    """The queue, as far as it is used here. The methods raise redis' errors."""

    async def read_log(self, job_id: str, after: int) -> LogPart:
        """The entries behind number `after`."""

    async def restart(self, job: LeasedJob, reason: str, code: str) -> str:
        """Give up a job that can't be continued; returns its new state, empty if it is lost."""


async def continue_from_log(
    queue: LogQueue, buffer: ContinuedOutputBuffer, aborted: asyncio.Event
) -> None:
    """Give `buffer` what the job's log has; an empty log leaves it as it is.

    If the log can't be used, the buffer refuses; if the job was lost, the buffer is discarded.
    Waits for Redis until `aborted` is set.
    """
    job = buffer.job
    part = await _answer(lambda: queue.read_log(job.id, 0), aborted)
    if part is None or buffer.discarded:
        return
    entries = part.entries
    if part.generation != job.generation or (entries and entries[-1].end):
        buffer.discarded = True  # the next renewal would find that out
        return
    if not entries:
        return
    try:
        continuation = await _sum(entries)
    except UnusableLog as error:
        buffer.refuse("log", str(error))
        return
    log.info(
        "continued behind entry %d of its log: %d tokens, %d chunks",
        continuation.last_seq,
        continuation.completion_tokens,
        len(continuation.chunks),
    )
    buffer.continue_from(continuation)


async def _sum(entries: Sequence[Entry]) -> Continuation:
    """The sum of a log; the tokens of other jobs go on meanwhile. Raises UnusableLog."""
    reader = ContinuationReader()
    for at in range(0, len(entries), _ENTRIES_AT_ONCE):
        reader.add(entries[at : at + _ENTRIES_AT_ONCE])
        await asyncio.sleep(0)
    return reader.continuation


async def give_up(queue: LogQueue, buffer: ContinuedOutputBuffer) -> None:
    """Give up the job of a buffer that has refused: it begins anew, or it fails."""
    try:
        state = await _answer(
            lambda: queue.restart(buffer.job, _OUTCOME, buffer.refusal_code),
            asyncio.Event(),
            _TRIES_TO_GIVE_UP,
        )
    except (RedisError, OSError) as error:
        log.error("job not continued (%s), and not given up: %s", buffer.refusal, error)
        return
    if state:
        buffer.count_restart(state)
        log.error("job not continued (%s), it is %s now", buffer.refusal, state)


async def _answer(
    call: Callable[[], Awaitable[ReplyT]], aborted: asyncio.Event, tries: int = 0
) -> ReplyT | None:
    """What `call` returns, as soon as Redis answers; None once `aborted` is set.

    `tries`: the error of the last one is raised; 0: no limit.
    """
    backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
    while not aborted.is_set():
        try:
            return await call()
        except Exception as error:
            tries -= 1
            if tries == 0 or not (isinstance(error, UNAVAILABLE) or unwritable(error)):
                raise
            log.warning("the job's log is not available, trying again: %s", error)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(aborted.wait(), backoff.next_delay_s())
    return None

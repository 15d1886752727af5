"""The state of a job and how long it may wait, as headers and as comments of its stream."""

from __future__ import annotations

import asyncio
import time
from typing import Any, NamedTuple

from gateway.core.stream_context import StreamContext
from gateway.http import server_events as sse
from shared.fleet.told_waits import LEAST_S
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.errors import StreamReset
from shared.job.lanes import pool_of
from shared.job.states import JobState
from shared.platform.durations import duration
from shared.store.interface import StoreError
from shared.store.redis.depths import position


class ToldWait(NamedTuple):
    """A wait that a client was told first."""

    context: StreamContext
    pool: str
    tenant: str
    told_s: float
    range_s: tuple[float, float] | None
    at: float
    """When, on the monotonic clock."""

    def ended(self, now: float) -> None:
        """The first output comes: compare."""
        real_s = now - self.at
        self.context.fleet.told_waits.ended(
            self.pool, self.tenant, self.told_s, real_s, now, self.range_s
        )
        self.context.metrics.told_wait.observe(real_s / self.told_s)


class Progress(NamedTuple):
    """How far a job is."""

    pool: str
    comment: bytes
    """Empty: the job has just ended."""
    position: int | None = None
    """In its queue, from 1; None: it does not wait, or that is not known."""
    wait: WaitEstimate | None = None

    @property
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Of a response that begins now."""
        if not self.position:
            return []
        shown = waiting_headers(self.position, self.wait)
        return [(name.encode(), value.encode()) for name, value in shown.items()]

    def told(self, context: StreamContext, tenant: str) -> ToldWait | None:
        """The wait, if it is long enough to be compared."""
        wait = self.wait
        if wait is None or wait.wait_s is None or wait.wait_s < LEAST_S:
            return None
        pool = pool_of(self.pool)
        return ToldWait(context, pool, tenant, wait.wait_s, wait.range_s, time.monotonic())


_UNKNOWN = Progress("", sse.comment("waiting for the queue"))


def waiting_headers(queue_position: int, wait: WaitEstimate | None) -> dict[str, str]:
    """Headers about a job that waits. Seconds from now, as the clocks of clients differ."""
    headers = {"x-flotilla-queue-position": str(queue_position)}
    if wait is not None and wait.wait_s is not None:
        headers["x-flotilla-estimated-start"] = f"{wait.wait_s:.1f}"
        if wait.range_s is not None:
            headers["x-flotilla-estimated-start-range"] = "{:.1f}-{:.1f}".format(*wait.range_s)
    return headers


async def read_progress(
    context: StreamContext, job_id: str, queued: asyncio.Future[Any] | None
) -> Progress:
    """The state of a job, and how long it may wait.

    Raises StreamReset if there is no such job any more. Before its submit is acknowledged
    (`queued`) it is not gone: the call may be on its way to a Redis that another has replaced.
    """
    if queued is not None and not queued.done():
        return _UNKNOWN
    try:
        job = await context.queue.get(job_id)
        queue_position = job and await position(context.queue, job)
    except StoreError:
        return _UNKNOWN
    if job is None:
        raise StreamReset("The queue has lost this job.")
    if job.state.terminal:
        return Progress(job.pool, b"")
    if not queue_position:
        return Progress(job.pool, sse.comment(job.state))
    wait = None
    if job.state is JobState.QUEUED:
        wait = context.fleet.wait_estimate(job.pool, queue_position, job.tenant)
    text = f"{job.state}, position {queue_position}{_words(wait)}"
    return Progress(job.pool, sse.comment(text), queue_position, wait)


def _words(wait: WaitEstimate | None) -> str:
    if wait is None:
        return ""
    about = ""
    if wait.wait_s is not None:
        about = f", starts in about {duration(wait.wait_s)}"
        if wait.range_s is not None:
            low, high = map(duration, wait.range_s)
            about += f" ({low} to {high})"
    return about + (f"; {wait.reason}" if wait.reason else "")

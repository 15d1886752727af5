"""The state of a job and how long it may wait, as headers and as comments of its stream."""

from __future__ import annotations

import asyncio
from typing import Any, Final, NamedTuple

from gateway.core.stream_context import StreamContext
from gateway.http import server_events as sse
from shared.fleet.wait_estimate import WaitEstimate
from shared.job.errors import StreamReset
from shared.job.states import JobState
from shared.platform.durations import duration
from shared.store.errors import StoreError
from shared.store.views import places

_LEAST_TOLD_S: Final = 2.0
"""Shorter waits are not compared: the first output takes a part of that by itself."""


class Progress(NamedTuple):
    """How far a job is."""

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

    @property
    def told_s(self) -> float:
        """The estimated wait, if it is long enough to be compared; else 0."""
        wait_s = self.wait.wait_s if self.wait else None
        return wait_s if wait_s is not None and wait_s >= _LEAST_TOLD_S else 0.0


_UNKNOWN = Progress(sse.comment("waiting for the queue"))


def waiting_headers(queue_position: int, wait: WaitEstimate | None) -> dict[str, str]:
    """Headers about a job that waits. Seconds from now, as the clocks of clients differ."""
    headers = {"x-flotilla-queue-position": str(queue_position)}
    if wait is not None and wait.wait_s is not None:
        headers["x-flotilla-estimated-start"] = f"{wait.wait_s:.1f}"
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
        [job] = await context.queue.get(job_id)
        place = (await places(context.queue, [job]))[0] if job else None
    except StoreError:
        return _UNKNOWN
    if job is None:
        raise StreamReset("The queue has lost this job.")
    if job.state.terminal:
        return Progress(b"")
    if place is None:
        return Progress(sse.comment(job.state))
    wait = None
    if job.state is JobState.QUEUED:
        wait = context.fleet.wait_estimate(job.pool, place.position)
    text = f"{job.state}, position {place.position}{_words(wait)}"
    return Progress(sse.comment(text), place.position, wait)


def _words(wait: WaitEstimate | None) -> str:
    if wait is None:
        return ""
    about = "" if wait.wait_s is None else f", starts in about {duration(wait.wait_s)}"
    return about + (f"; {wait.reason}" if wait.reason else "")

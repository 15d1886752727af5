"""The comment with the state of its job that a client is sent while it gets no data."""

from __future__ import annotations

import asyncio
from typing import Any

from gateway.core.stream_context import StreamContext
from gateway.http import server_events as sse
from shared.job.errors import StreamReset
from shared.job.states import JobState
from shared.store.interface import StoreError
from shared.store.redis.depths import position

_WAITING = sse.comment("waiting for the queue")


async def progress_comment(
    context: StreamContext, job_id: str, queued: asyncio.Future[Any] | None
) -> bytes:
    """The comment; empty if the job has just ended.

    Raises StreamReset if there is no such job any more. Before its submit is acknowledged
    (`queued`) it is not gone: the call may be on its way to a Redis that another has replaced.
    """
    if queued is not None and not queued.done():
        return _WAITING
    try:
        job = await context.queue.get(job_id)
        queue_position = job and await position(context.queue, job)
    except StoreError:
        return _WAITING
    if job is None:
        raise StreamReset("The queue has lost this job.")
    if job.state.terminal:
        return b""
    if not queue_position:
        return sse.comment(job.state)
    reason = context.wait_reason(job.pool) if job.state is JobState.QUEUED else ""
    return sse.comment(
        f"{job.state}, position {queue_position}" + (f"; {reason}" if reason else "")
    )

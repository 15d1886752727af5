"""The answer to a call: its job is submitted and followed, or one that an earlier call has made."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from gateway.core.answer import JobAnswer
from gateway.core.call import new_call
from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming
from gateway.core.new_call import NewCall, Unwrap
from gateway.core.rate_limiter import LimitedAnswer, RateLimiter
from gateway.core.reader import ReadMode
from gateway.core.received_events import StreamPosition
from gateway.http.error_response import to_flotilla_error
from gateway.http.held_bytes import BODIES
from shared.api.endpoint import Endpoint
from shared.job.errors import StreamReset
from shared.job.job import Job
from shared.platform import logs, request_span

_REPLAYED = (b"idempotent-replayed", b"true")


async def answer_call(gateway: Gateway, incoming: Incoming, source: Endpoint | Unwrap) -> Answer:
    """Submit the request's job and return its answer. Raises as `new_call`, and StreamReset."""
    call = await new_call(gateway, incoming, source)
    if call.taken is None:
        return await _answer(gateway, incoming, call)
    limiter = gateway.of(RateLimiter)
    try:
        answer = await _answer(gateway, incoming, call, call.taken.headers())
    except BaseException:
        limiter.release(call.taken)
        raise
    return LimitedAnswer(answer, limiter, call.taken)


async def _answer(
    gateway: Gateway,
    incoming: Incoming,
    call: NewCall,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> Answer:
    if call.joined:
        return await _replayed(gateway, call.joined, call, incoming)
    job, request_id = call.job, incoming.request_id
    logs.bind_contextvars(
        job_id=job.id, request_id=request_id.decode("ascii") if request_id else job.id
    )
    mode = ReadMode.CHUNKS if job.stream else ReadMode.END
    reader = gateway.relay.open(job.id, mode, is_new=True)

    def on_error(error: Exception) -> None:
        failure = to_flotilla_error(error)
        gateway.metrics.refused.labels(failure.code or failure.type).inc()
        reader.fail(failure)

    # Not awaited: if the queue refuses the job, the reader fails.
    queued = gateway.submitter.submit(job, on_error=on_error)
    reader.queued = queued
    if BODIES.has(incoming.scope):  # a stream may be long
        queued.add_done_callback(lambda _: BODIES.release(incoming.scope))
    if call.keyed:
        await asyncio.wait({queued})
        joined_id = None if queued.exception() else queued.result()
        if joined_id is not None:
            gateway.relay.close(reader)
            return await _replayed(gateway, joined_id, call, incoming)
    if call.background:
        return await call.background.background_answer(job, queued, reader, incoming)
    return JobAnswer(gateway.streams, job, reader, incoming, headers=headers)


def answer_of(
    gateway: Gateway,
    job: Job,
    position: StreamPosition,
    incoming: Incoming,
    headers: Sequence[tuple[bytes, bytes]] = (),
) -> JobAnswer:
    """The answer of a job that an earlier request has submitted; see JobAnswer."""
    span = request_span.current()
    if span is not None:
        span.join(job.origin.traceparent)
    reader = gateway.relay.open(job.id, ReadMode.CHUNKS if job.stream else ReadMode.END)
    return JobAnswer(gateway.streams, job, reader, incoming, position, headers)


async def _replayed(gateway: Gateway, job_id: str, call: NewCall, incoming: Incoming) -> Answer:
    """The answer of the job that an earlier request with the same idempotency key has made."""
    [joined] = await gateway.queue.get(job_id)
    if joined is None:
        raise StreamReset("The job of this Idempotency-Key is gone; send the request again.")
    logs.bind_contextvars(job_id=joined.id)
    if call.background and not joined.stream:
        return await call.background.replayed_answer(joined, incoming, [_REPLAYED])
    return answer_of(gateway, joined, StreamPosition(), incoming, [_REPLAYED])

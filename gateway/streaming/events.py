"""A job as a stream of events: what has happened (from the log), then what happens (live).

| event | data | id |
|---|---|---|
| `queued` | `{id, state, position}`; again while it waits | |
| `in_progress` | `{id, state}` | |
| `chunk` | an OpenAI chunk, if the request asked for a stream | yes |
| `delta` | `{"choices": [{index, text}]}`, if it did not | yes |
| `completed`, `failed`, `cancelled`, `expired` | the job; the last event | yes |
| `error` | OpenAI's error object, if the events can't be gone on with | |

An id is the number of a log entry, or `number.k` for the k-th of several chunks in one entry. Sent
back as `Last-Event-ID`, to any gateway, it goes on with the very next event.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import NamedTuple

from gateway.http import sse
from gateway.streaming.context import StreamContext
from gateway.streaming.reader import LogEvent, Reader, ReadMode
from shared.api.errors import BadRequest, FlotillaError, RedisUnavailable, StreamReset
from shared.platform.redis_client import RedisError
from shared.protocol.frames import FrameKind
from shared.protocol.job import Job
from shared.protocol.job_log import Delta
from shared.protocol.states import JobState
from shared.queue.depths import position

_DONE = b"[DONE]"


class Place(NamedTuple):
    """Where a reader stopped: it has `entry` whole, and `parts` chunks of the next one."""

    entry: int
    parts: int

    @classmethod
    def parse(cls, event_id: str) -> Place:
        """Raises BadRequest for what is no id of ours."""
        entry, dot, part = event_id.partition(".")
        sound = entry.isdecimal() and len(entry) < 16 and (not dot or part.isdecimal())
        if not sound or (dot and int(entry) == 0):
            raise BadRequest("Last-Event-ID is not an id of this stream.")
        return cls(int(entry) - 1, int(part)) if dot else cls(int(entry), 0)


async def events(context: StreamContext, job: Job, place: Place) -> AsyncIterator[bytes]:
    """SSE bytes from `place` to the job's end. Never raises FlotillaError: it becomes an event."""
    want = ReadMode.CHUNKS if job.stream else ReadMode.DELTAS
    reader = context.relay.open(job.id, want, place.entry)
    try:
        async for data in _follow(context, reader, job.id, place.parts):
            yield data
    except FlotillaError as failure:
        yield sse.raw_event("error", failure.to_openai())
    except (RedisError, OSError):
        away = RedisUnavailable("The queue can't be reached; come back with Last-Event-ID.")
        yield sse.raw_event("error", away.to_openai())
    finally:
        context.relay.close(reader)


async def _follow(
    context: StreamContext, reader: Reader, job_id: str, skip: int
) -> AsyncIterator[bytes]:
    yield b"retry: 1000\n\n"
    await context.queue.watch(job_id, context.gateway_id, follow=True)
    reader.resync()  # the log first: it holds what was before we watched
    waits = True
    while True:
        if waits:
            job = await _job(context, job_id)
            waits = job.state is JobState.QUEUED
            if waits:
                yield await _queued(context, job)
            elif job.started_at is not None:
                yield _in_progress(job)
        pieces = await reader.next(context.settings.keepalive_s)
        if waits and pieces:
            waits = False
            job = await _job(context, job_id)
            if job.started_at is not None:
                yield _in_progress(job)
        elif not waits and not pieces:
            yield sse.comment("in progress")
        for piece in pieces:
            if piece.last:
                job = await _job(context, job_id)
                yield sse.event(job.state, await context.job_object(job), str(piece.seq))
                return
            for data in _render(piece)[skip:]:
                yield data
            if piece.seq:
                skip = 0


def _in_progress(job: Job) -> bytes:
    return sse.event(JobState.IN_PROGRESS, {"id": job.id, "state": JobState.IN_PROGRESS})


def _render(piece: LogEvent) -> list[bytes]:
    if piece.kind == FrameKind.DELTAS:
        texts: dict[tuple[int, int], str] = {}
        for delta in piece.payload:
            if isinstance(delta, Delta):  # a slow Redis gets several steps at once
                place = (delta.call, delta.choice)
                texts[place] = texts.get(place, "") + delta.text
        choices = [{"index": choice, "text": text} for (_, choice), text in texts.items()]
        if not choices:
            return []
        data = json.dumps({"choices": choices}, ensure_ascii=False).encode()
        return [sse.raw_event("delta", data, str(piece.seq))]
    if piece.kind == FrameKind.CHUNK:
        chunks = [data for data in sse.split(piece.payload) if data != _DONE]
        ids = [f"{piece.seq}.{k}" for k in range(1, len(chunks))] + [str(piece.seq)]
        return [
            sse.raw_event("chunk", data, event_id)
            for data, event_id in zip(chunks, ids[: len(chunks)], strict=True)
        ]
    return []


async def _queued(context: StreamContext, job: Job) -> bytes:
    place = await position(context.queue, job)
    return sse.event("queued", {"id": job.id, "state": job.state, "position": place})


async def _job(context: StreamContext, job_id: str) -> Job:
    job = await context.queue.get(job_id)
    if job is None:
        raise StreamReset("The job is gone.")
    return job

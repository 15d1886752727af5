"""A job as a stream of server-sent events: what has happened (from the log), then what happens.

| event | data |
|---|---|
| `queued` | `{id, state, position}`; again while it waits |
| `in_progress` | `{id, state}` |
| `chunk` | an OpenAI chunk, if the request asked for a stream |
| `delta` | `{"choices": [{index, text}]}`, if it did not |
| `completed`, `failed`, `cancelled`, `expired` | the job; the last event |
| `error` | OpenAI's error object, if the stream of events can't be continued |

Each has an id: the number of a log entry, or `number.k` for the k-th of several chunks in one
entry; `queued`, `in_progress` and `error` have that of the event before, the last one has `end`.
Sent back to any gateway as `Last-Event-ID`, it continues with what is behind it.

Token path: gateway/core/reader.py -> here -> the response of `GET /jobs/{id}/events`.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import NamedTuple

from gateway.core.reader import LogEvent, Reader, ReadMode, lacks_entries
from gateway.core.stream_context import StreamContext
from gateway.http import server_events as sse
from shared.job.errors import BadRequest, FlotillaError, RedisUnavailable, StreamReset
from shared.job.job import Job, shard_in
from shared.job.log import START, Delta
from shared.job.states import JobState
from shared.store.answers import read_again
from shared.store.errors import StoreError
from shared.store.queue import LOG_LOST, Queue
from shared.store.views import places

END_ID = "end"
"""The id of the last event. It is no number: where Redis has lost writes, the end may have that of
an entry that a client has got."""
_DONE = b"[DONE]"
_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
_RETRY = b"retry: 1000\n"
"""A part of the first event: alone it would be a block without data, an empty event to clients."""


class _CutShort(Exception):
    """An event is incomplete: the connection is closed, and the client asks for it again."""


class EventPosition(NamedTuple):
    """A client has the entries up to number `entry`, and `chunks` chunks of the next one."""

    entry: int
    chunks: int

    @classmethod
    def parse(cls, event_id: str) -> EventPosition:
        """The position behind the event with this id. Raises BadRequest for any other text."""
        entry, dot, chunk = event_id.partition(".")
        valid = entry.isdecimal() and len(entry) < 16 and (not dot or chunk.isdecimal())
        if not valid or (dot and int(entry) == 0):
            raise BadRequest("Last-Event-ID is not an id of this stream.")
        return cls(int(entry) - 1, int(chunk)) if dot else cls(int(entry), 0)

    def __str__(self) -> str:
        return f"{self.entry + 1}.{self.chunks}" if self.chunks else str(self.entry)


async def number_of_end(queue: Queue, job: Job) -> int | None:
    """The number of the end of a job that has ended, which clients do not get as an id: that of its
    entry, or the next one if the entry has output, too. None: its log is gone. Raises StoreError.
    """
    [last] = await queue.positions(shard_in(job.id), [job.id])
    if last is None or last in (START, LOG_LOST):
        return None
    entries = await queue.read(job.id, last, 1)
    return last.number + any(entry.journal is not None for entry in entries)


async def events(context: StreamContext, job: Job, after: EventPosition) -> AsyncIterator[bytes]:
    """The events behind a position, up to the job's end, as bytes of the response.

    A FlotillaError or StoreError becomes the last event. Raises _CutShort if that is not possible.
    """
    mode = ReadMode.CHUNKS if job.stream else ReadMode.DELTAS
    reader = context.relay.open(job.id, mode, after=after.entry, with_events=True)
    last_id, ended, retry_sent = str(after), job.state.terminal, False
    try:
        async for data, event_id in _follow(context, reader, job.id, after):
            last_id = event_id
            if retry_sent or not data.startswith(b"event:"):
                yield data
            else:
                retry_sent = True
                yield _RETRY + data
        ended = True
    except FlotillaError as failure:
        yield sse.raw_event("error", failure.to_openai(), last_id)
    except StoreError:
        unavailable = RedisUnavailable("The queue can't be reached; come back with Last-Event-ID.")
        yield sse.raw_event("error", unavailable.to_openai(), last_id)
    finally:
        context.relay.close(reader, leave=not ended)


async def _follow(
    context: StreamContext, reader: Reader, job_id: str, after: EventPosition
) -> AsyncIterator[tuple[bytes, str]]:
    """Parts of the response, each with the id of the last event that the client has with it."""
    last_id, skip = str(after), after.chunks
    queued = True
    while True:
        if queued:
            job = await _job(context, job_id)
            queued = job.state is JobState.QUEUED
            if queued:
                yield await _queued(context, job, last_id), last_id
            elif job.started_at is not None:
                yield _in_progress(job, last_id), last_id
        log_events = await reader.next(context.settings.keepalive_s)
        if queued and log_events:
            queued = False
            job = await _job(context, job_id)
            if job.started_at is not None:
                yield _in_progress(job, last_id), last_id
        elif not queued and not log_events:
            yield sse.comment("in progress"), last_id
        for event in log_events:
            rendered = _render(event)
            if event.number == after.entry > 0:  # the end, whose output the client has
                if not rendered:
                    raise lacks_entries()
                rendered = []
            for data, last_id in rendered[skip:]:
                yield data, last_id
            skip = 0
            if event.last:
                job = await _job(context, job_id)
                if not job.state.terminal:
                    raise StreamReset("Redis has lost the end of this job; try again.")
                async for data in _end(context, job):
                    yield data, END_ID
                return


async def _end(context: StreamContext, job: Job) -> AsyncIterator[bytes]:
    """The last event, in parts. Raises _CutShort if it has begun and can't go on."""
    begin, begun = f"event: {job.state}\nid: {END_ID}\ndata: ".encode(), False
    body, _ = await context.job_object(job)
    try:
        async for part in body.parts():
            # An event's data is one line; JSON has line ends between values only.
            yield (b"" if begun else begin) + part.translate(_ONE_LINE)
            begun = True
    except (FlotillaError, StoreError) as error:
        if not begun:
            raise
        raise _CutShort from error
    yield b"\n\n"


def _in_progress(job: Job, last_id: str) -> bytes:
    return sse.event(JobState.IN_PROGRESS, {"id": job.id, "state": JobState.IN_PROGRESS}, last_id)


def _render(event: LogEvent) -> list[tuple[bytes, str]]:
    """Events with their ids."""
    if not isinstance(event.output, bytes):
        return _render_deltas(event)
    chunks = [data for data in sse.split(event.output) if data != _DONE]
    ids = [f"{event.number}.{k}" for k in range(1, len(chunks))] + [str(event.number)]
    return [
        (sse.raw_event("chunk", data, event_id), event_id)
        for data, event_id in zip(chunks, ids[: len(chunks)], strict=True)
    ]


def _render_deltas(event: LogEvent) -> list[tuple[bytes, str]]:
    """One event with the text of each choice; several steps of one are joined.

    `prompt`: which one of several prompts a choice answers, but for the first.
    """
    texts: dict[tuple[int, int], str] = {}
    for delta in event.output:
        if isinstance(delta, Delta):
            sequence = (delta.call, delta.choice)
            texts[sequence] = texts.get(sequence, "") + delta.text
    choices = [
        {"index": choice, "text": text} | ({"prompt": call} if call else {})
        for (call, choice), text in texts.items()
    ]
    if not choices:
        return []
    data = json.dumps({"choices": choices}, ensure_ascii=False).encode()
    event_id = str(event.number)
    return [(sse.raw_event("delta", data, event_id), event_id)]


async def _queued(context: StreamContext, job: Job, last_id: str) -> bytes:
    (place,) = await places(context.queue, [job])
    data = {"id": job.id, "state": job.state, "position": place and place.position}
    return sse.event("queued", data, last_id)


async def _job(context: StreamContext, job_id: str) -> Job:
    [job] = await read_again(lambda: context.queue.get(job_id))
    if job is None:
        raise StreamReset("The job is gone.")
    return job

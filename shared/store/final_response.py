"""The response object of a completed job, as the engine has made it."""

from __future__ import annotations

import re

from shared.job.errors import StreamReset
from shared.job.frames import DeltaDecoder
from shared.job.job import Job
from shared.job.states import JobState
from shared.store.interface import Store
from shared.store.log_parts import log_parts
from shared.store.stored_body import Body

_MEMBER = rb'"(?:type|sequence_number)"\s*:\s*(?:"[a-z._]*"|[0-9]+)'
_BEFORE = re.compile(rb'\{\s*(?:%b\s*,\s*)*"response"\s*:\s*(?=\{)' % _MEMBER)
_AFTER = re.compile(rb"\}(?:\s*,\s*%b)*\s*\}\s*\Z" % _MEMBER)
_AFTER_BYTES = 256


async def final_body(queue: Store, job: Job) -> Body | None:
    """The engine's answer, as it is stored; None if the job ended without a response.

    Raises StreamReset if Redis has lost a part of it, and StoreError.
    """
    if job.state is not JobState.COMPLETED:
        return None
    if job.result_bytes:
        return Body(b"", queue, job)
    decoder, chunk = DeltaDecoder(), b""
    async for entries in log_parts(queue, job):
        for entry in entries:
            if entry.items:
                chunk = decoder.decode(entry.items)
    _, _, event = chunk.rstrip(b"\n").rpartition(b"\ndata: ")
    return Body(response_in(event))


def response_in(event: bytes) -> bytes:
    """The JSON of the response in the last event of its stream, which may be long.

    The members beside it are short, so that it is found without parsing it. Raises StreamReset if
    there is none.
    """
    before, after = _BEFORE.match(event), _AFTER.search(event, max(0, len(event) - _AFTER_BYTES))
    if before is None or after is None:
        raise StreamReset("The answer of this job is no response.")
    return event[before.end() : after.start() + 1]

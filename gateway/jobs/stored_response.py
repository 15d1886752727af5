"""Stored responses: each is a job, whose record has the request and whose log has the answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple

from gateway.jobs.response_items import sent_again, stored_item
from shared.api.endpoint import StreamFormat
from shared.api.endpoints import ENDPOINTS
from shared.api.errors import BadRequest, NotFound, PreviousResponseNotFound, StreamReset
from shared.protocol.chunk_template import DeltaDecoder
from shared.protocol.conversation import StoredItem
from shared.protocol.job import Job
from shared.protocol.job_log import Entry, tokens_missing
from shared.protocol.response_id import job_id_of, response_id
from shared.protocol.response_options import ResponseOptions
from shared.protocol.states import JobState
from shared.queue.job_queue import JobQueue


class StoredResponse(NamedTuple):
    """A response and what its client asked for."""

    job: Job
    body: bytes
    up_to: str = ""
    """Where its input is, if not in the body: the number of its last item in its conversation, or
    the job of a later response, whose input begins with it."""

    @property
    def id(self) -> str:
        """The response's id."""
        return response_id(self.job.id)

    @property
    def options(self) -> ResponseOptions:
        """What the client asked of the gateway."""
        return ResponseOptions.of_body(self.body)

    @property
    def input(self) -> bytes:
        """All that the answer was made from, the history first, as JSON.

        Empty if it is elsewhere (`up_to`).
        """
        return self.options.input_of(self.body)


def is_response(job: Job) -> bool:
    """Whether the job is a response."""
    endpoint = ENDPOINTS.get(job.endpoint)
    return endpoint is not None and endpoint.stream is StreamFormat.RESPONSE_EVENTS


async def stored_response(queue: JobQueue, tenant: str, response: str) -> StoredResponse:
    """The tenant's stored response with this id. Raises NotFound, and redis' errors."""
    job_id = job_id_of(response)
    job = await queue.get(job_id) if job_id else None
    if job is not None and job.tenant == tenant and is_response(job):
        found = StoredResponse(job, *await queue.stored_request(job.id))
        if found.options.store:
            return found
    raise NotFound(
        f"Response with id {response[:64]!r} not found: the id is wrong, it was deleted, it was "
        "created with `store: false`, or it has expired."
    )


async def begins_at_once(queue: JobQueue, job: Job) -> bool:
    """Whether the first event of the job's stream was sent before a worker has made it."""
    if not job.stream or not is_response(job):
        return False
    return ResponseOptions.of_body(await queue.request_body(job.id)).background


async def previous_response(queue: JobQueue, tenant: str, previous: str) -> StoredResponse:
    """The stored response that a request continues.

    Raises PreviousResponseNotFound, BadRequest if it is not complete, and redis' errors.
    """
    param = "previous_response_id"
    try:
        stored = await stored_response(queue, tenant, previous)
    except NotFound as error:
        message = f"Previous response with id {previous[:64]!r} not found."
        raise PreviousResponseNotFound(message, param) from error
    if not stored.job.state.terminal:
        raise BadRequest("The previous response is not complete yet.", param)
    if stored.job.state is not JobState.COMPLETED:
        raise BadRequest(f"The previous response is {stored.job.state}: it has no output.", param)
    return stored


async def output_items(queue: JobQueue, job: Job) -> list[StoredItem] | None:
    """The items that a response has added, as the next request sends them again; None: it has none.

    Raises StreamReset if Redis has lost a part of the answer, and redis' errors.
    """
    final = await final_response(queue, job)
    if final is None:
        return None
    items = enumerate(sent_again(final["output"]))
    return [stored_item(item, f"{job.id} output", number) for number, item in items]


async def final_response(queue: JobQueue, job: Job) -> dict[str, Any] | None:
    """What the engine answered; None if the job ended without a response.

    Raises StreamReset if Redis has lost a part of it, and redis' errors.
    """
    if job.state is not JobState.COMPLETED:
        return None
    if job.result:
        return _checked(json.loads(job.result))
    entries = await queue.entries(job.id, 0)
    if not entries or tokens_missing(entries):
        raise StreamReset("Redis has lost tokens of this response; create it again.")
    return _checked(last_event(entries).get("response"))


def last_event(entries: Sequence[Entry]) -> dict[str, Any]:
    """The last event of a stream that has ended; empty if it can't be read."""
    decoder = DeltaDecoder()
    chunk = b""
    for entry in entries:
        if entry.items:
            chunk = decoder.decode(entry.items)
    _, _, data = chunk.rstrip(b"\n").rpartition(b"\ndata: ")
    try:
        event = json.loads(data)
    except ValueError:
        return {}
    return event if isinstance(event, dict) else {}


def _checked(response: Any) -> dict[str, Any]:
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise StreamReset("The answer of this job is no response.")
    return response

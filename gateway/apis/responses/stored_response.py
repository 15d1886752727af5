"""Stored responses: each is a job, whose record has the request and whose log has the answer."""

from __future__ import annotations

import json
from typing import NamedTuple

from gateway.apis.responses.response_items import sent_again, stored_item
from shared.api.endpoint import StreamFormat
from shared.api.endpoints import ENDPOINTS
from shared.job.errors import (
    BadRequest,
    BodyTooLarge,
    NotFound,
    PreviousResponseNotFound,
    StreamReset,
)
from shared.job.job import Job
from shared.job.responses import ResponseOptions, StoredItem, job_id_of, response_id
from shared.job.states import JobState
from shared.store.answers import final_response
from shared.store.queue import Queue

_MOST_CONTINUED_BYTES = 4 << 20
"""Of a response that is parsed because another one continues it: with the log probabilities, which
the engine does not get."""


class StoredResponse(NamedTuple):
    """A response and its request."""

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
        """The options for the gateway."""
        return ResponseOptions.of_body(self.body)


def is_response(job: Job) -> bool:
    """Whether the job is a response."""
    endpoint = ENDPOINTS.get(job.endpoint)
    return endpoint is not None and endpoint.stream is StreamFormat.RESPONSE_EVENTS


async def stored_response(queue: Queue, tenant: str, response: str) -> StoredResponse:
    """The tenant's stored response with this id. Raises NotFound, and StoreError."""
    job_id = job_id_of(response)
    [job] = await queue.get(job_id) if job_id else [None]
    if job is not None and job.tenant == tenant and is_response(job):
        found = StoredResponse(job, *await queue.stored_request(job.id))
        if found.options.store:
            return found
    raise NotFound(
        f"Response with id {response[:64]!r} not found: the id is wrong, it was deleted, it was "
        "created with `store: false`, or it has expired."
    )


async def previous_response(queue: Queue, tenant: str, previous: str) -> StoredResponse:
    """The stored response that a request continues.

    Raises PreviousResponseNotFound, BadRequest if it is not complete, and StoreError.
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


async def output_items(queue: Queue, job: Job) -> list[StoredItem] | None:
    """The items that a response has added, as the next request sends them again; None: it has none.

    Raises StreamReset if Redis has lost a part of the answer, BodyTooLarge, and StoreError.
    """
    body = await final_response(queue, job)
    if body is None:
        return None
    whole = await body.read(_MOST_CONTINUED_BYTES)
    if whole is None:
        raise BodyTooLarge(
            f"The response {response_id(job.id)} has {body.size} bytes; one of more than "
            f"{_MOST_CONTINUED_BYTES} can't be continued."
        )
    try:
        response = json.loads(whole)
    except ValueError:
        response = None
    if not isinstance(response, dict) or not isinstance(response.get("output"), list):
        raise StreamReset("The answer of this job is no response.")
    items = enumerate(sent_again(response["output"]))
    return [stored_item(item, f"{job.id} output", number) for number, item in items]

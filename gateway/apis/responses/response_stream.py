"""`GET /v1/responses/{id}?stream=true`: the events of a response, by its id, on any gateway.

The events of a response are numbered from 0 without a gap, so `starting_after=N` is the stream
behind its first `N + 1` events.
"""

from __future__ import annotations

import re
from urllib.parse import parse_qsl

from starlette.types import Scope

from gateway.apis.responses.stored_response import stored_response
from gateway.core.answer import JobAnswer, answer_of
from gateway.core.context import Gateway
from gateway.core.incoming import Incoming
from gateway.core.resume import StreamPosition
from gateway.http.wrong_fields import sent
from shared.job.errors import BadRequest
from shared.job.responses import opening
from shared.job.states import JobState

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1"})  # as the other routes read it
_NUMBER = re.compile(r"[0-9]{1,15}")
BEHIND_OPENING = StreamPosition(after=1, awaited=True)
"""For a stream whose first event the gateway has sent: the worker's is left out."""


def wants_events(scope: Scope) -> bool:
    """Whether a request to retrieve a response asks for its events."""
    return dict(_query(scope)).get("stream", "").lower() in _TRUE


async def resume(gateway: Gateway, incoming: Incoming) -> JobAnswer:
    """The answer with the response's events. Raises NotFound, BadRequest, and StoreError."""
    scope = incoming.scope
    starting_after = _starting_after(scope)
    response = scope["path"].rpartition("/")[2]
    stored = await stored_response(gateway.queue, incoming.tenant, response)
    if not stored.job.stream:
        raise BadRequest("Only a response that was created with `stream: true` has events.")
    position = StreamPosition(awaited=True)
    if starting_after is not None:
        position = StreamPosition(after=starting_after + 1, awaited=True)
    elif stored.job.state is JobState.QUEUED:
        position = BEHIND_OPENING._replace(opening=opening(stored.job.id, stored.body))
    return answer_of(gateway, stored.job, position, incoming)


def _query(scope: Scope) -> list[tuple[str, str]]:
    return parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)


def _starting_after(scope: Scope) -> int | None:
    value = dict(_query(scope)).get("starting_after")
    if value is None:
        return None
    if not _NUMBER.fullmatch(value):
        raise BadRequest(
            f"`starting_after` must be the number of an event, not {sent(value)}.", "starting_after"
        )
    return int(value)

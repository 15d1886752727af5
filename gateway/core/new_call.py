"""A request's job before it is submitted, and what a body of another shape contains.

`call.py` makes them, and says in which order a request is checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.core.endpoint_step import EndpointStep
from shared.api.endpoint import Endpoint
from shared.job.job import NewJob
from shared.tenants.rate_limits import Taken


class JobOptions(NamedTuple):
    """The options of a job, beside the endpoint's own body. Empty or None: not set."""

    lane: str = ""
    on_disconnect: str = ""
    deadline_s: float | None = None
    queue_deadline_s: float | None = None
    run_deadline_s: float | None = None
    max_wait_s: float | None = None
    metadata: Mapping[str, str] | None = None
    retried_from: str = ""
    webhooks: Sequence[str] = ()
    """Endpoints that get an event when it ends; empty: all that have subscribed to it."""


NO_OPTIONS = JobOptions()


class Wrapped(NamedTuple):
    """The call of an endpoint that a body of another shape contains."""

    endpoint: Endpoint
    fields: Mapping[str, Any]
    body: bytes
    """The same fields as JSON, for the engine."""
    options: JobOptions = NO_OPTIONS


Unwrap = Callable[[bytes, dict[str, Any]], Wrapped]
"""Finds the call in a body and its fields; in a thread, if it is large. Raises BadRequest."""


class NewCall(NamedTuple):
    """A request's job, which is not queued yet, and how the request is to be answered."""

    job: NewJob
    """Not to be submitted if the call has `joined` another."""
    background: EndpointStep | None
    """The step that answers the call at once; None: the job is followed."""
    keyed: bool
    """It has an idempotency key: the queue may have its job already."""
    joined: str = ""
    """The job that an earlier call with this one's key has made, as far as it is known."""
    taken: Taken | None = None
    """What it has taken of limits; None: it has none."""

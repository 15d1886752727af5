"""What an API may add to the calls of an endpoint, also as POST /jobs (`Gateway.steps`)."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from gateway.core.incoming import Answer, Incoming
from gateway.core.reader import Reader
from shared.job.job import Job, NewJob
from shared.store.queue import JoinedJob


class Prepared(Protocol):
    """What a step has read in a body that was checked."""

    @property
    def conversation(self) -> str:
        """The conversation that the call continues; its job lies in that shard. Empty: none."""

    @property
    def background(self) -> bool:
        """The call is answered at once, by the step."""

    @property
    def has_history(self) -> bool:
        """The step adds earlier items to the body that the client has sent."""


class EndpointStep(Protocol):
    """The methods raise StoreError, and those of requests that can't be served."""

    def prepare(self, fields: Mapping[str, Any]) -> Prepared:
        """Read the fields of a body that was checked. Pure: called in a thread for a large body."""

    async def complete(self, job: NewJob, prepared: Any) -> NewJob | JoinedJob:
        """The job as it is submitted, or the earlier one that the call repeats."""

    async def background_answer(
        self, job: NewJob, queued: asyncio.Future[str | None], reader: Reader, incoming: Incoming
    ) -> Answer:
        """The answer to a call in the background, whose job is being queued."""

    async def replayed_answer(
        self, job: Job, incoming: Incoming, headers: Sequence[tuple[bytes, bytes]]
    ) -> Answer:
        """The answer to a call in the background that repeats an earlier one."""

    async def begins_at_once(self, job: Job) -> bool:
        """Whether the gateway has sent the first event of the job's stream before its worker."""

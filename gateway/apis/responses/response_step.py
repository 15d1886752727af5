"""What this API adds to each call of `/v1/responses`: history, storage, answers in background."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.apis.responses.response_jobs import ResponseJobs
from gateway.apis.responses.response_object import response_object
from gateway.apis.responses.response_request import ResponseRequest, response_request
from gateway.apis.responses.response_stream import BEHIND_OPENING
from gateway.apis.responses.stored_response import stored_response
from gateway.core.answer import JobAnswer
from gateway.core.context import Gateway
from gateway.core.incoming import Answer, Incoming
from gateway.core.reader import Reader
from gateway.core.send_body import StoredAnswer
from shared.job.job import Job, NewJob
from shared.job.responses import ResponseOptions, opening, response_id, unfinished
from shared.store.answers import Body
from shared.store.queue import JoinedJob


class ResponseStep:
    """See EndpointStep."""

    def __init__(self, gateway: Gateway, jobs: ResponseJobs) -> None:
        self._gateway = gateway
        self._jobs = jobs

    def prepare(self, fields: Mapping[str, Any]) -> ResponseRequest:
        """The parts of a body. Raises BadRequest."""
        return response_request(fields)

    async def complete(self, job: NewJob, prepared: ResponseRequest) -> NewJob | JoinedJob:
        """See ResponseJobs.complete."""
        return await self._jobs.complete(job, prepared)

    async def background_answer(
        self, job: NewJob, queued: asyncio.Future[str | None], reader: Reader, incoming: Incoming
    ) -> Answer:
        """The answer to a request that queues a response in the background: at once."""
        gateway, position = self._gateway, None
        try:
            await asyncio.wait({queued})
            if queued.exception() is None:  # else the reader has failed, and so does the answer
                if not job.stream:
                    # `queued`, as OpenAI and vLLM answer, although a worker may have it already.
                    begun = unfinished(job.id, job.body, "queued") | {"model": job.model}
                    body = Body(json.dumps(begun, ensure_ascii=False).encode())
                    gateway.relay.close(reader)
                    return StoredAnswer(job, 200, body, incoming.request_id)
                position = BEHIND_OPENING._replace(opening=opening(job.id, job.body))
        except BaseException:
            gateway.relay.close(reader)
            raise
        return JobAnswer(gateway.streams, job, reader, incoming, position)

    async def replayed_answer(
        self, job: Job, incoming: Incoming, headers: Sequence[tuple[bytes, bytes]]
    ) -> Answer:
        """The response of an earlier request as it is now, as the answer to a repeated one."""
        queue = self._gateway.queue
        stored = await stored_response(queue, job.tenant, response_id(job.id))
        body = await response_object(queue, stored)
        return StoredAnswer(job, 200, body, incoming.request_id, headers)

    async def begins_at_once(self, job: Job) -> bool:
        """Whether it is in the background: the gateway has sent the first event of its stream."""
        body, _ = await self._gateway.queue.stored_request(job.id) if job.stream else (b"", "")
        return ResponseOptions.of_body(body).background

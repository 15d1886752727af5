"""Responses as jobs: the body, the lifetime and the conversation of each."""

from __future__ import annotations

import asyncio

from gateway.jobs.conversations import Conversations
from gateway.jobs.response_items import Item
from gateway.jobs.response_request import ResponseRequest
from gateway.jobs.stored_response import history_of
from shared.api.errors import BodyTooLarge
from shared.platform.settings import Settings
from shared.protocol.job import NewJob
from shared.queue.job_queue import JobQueue


class ResponseJobs:
    """Makes the jobs of responses in one gateway process."""

    def __init__(self, queue: JobQueue, conversations: Conversations, settings: Settings) -> None:
        self._queue = queue
        self._conversations = conversations
        self._settings = settings

    async def body(self, tenant: str, request: ResponseRequest) -> bytes:
        """The body for the job, with the history that the request continues.

        Raises BadRequest, NotFound, BodyTooLarge, and redis' errors.
        """
        if not request.has_history:
            return request.body
        history = await self._history(tenant, request)
        most_items, most_bytes = self._settings.max_messages, self._settings.max_body_bytes
        # In a thread: a long conversation is as much work as a large body.
        body = await asyncio.to_thread(request.body_behind, history, most_items)
        if len(body) > most_bytes:
            raise BodyTooLarge(
                f"This input and what is before it are larger than {most_bytes} bytes."
            )
        return body

    async def kept(self, job: NewJob, request: ResponseRequest) -> NewJob:
        """The job with the lifetime of its response; it joins its conversation. Raises redis'
        errors."""
        options, settings = request.options, self._settings
        if not options.store:
            return job
        ttl_s = max(job.ttl_s, settings.response_ttl_s)
        if options.conversation:
            ttl_s = max(ttl_s, settings.conversation_ttl_s)
            await self._conversations.add_response(options.conversation, job.id)
        job = job._replace(ttl_s=ttl_s)
        if not options.background:
            return job
        # It does not need a client, and has one only as a stream.
        return job._replace(keep_s=None, gateway=job.gateway if job.stream else "")

    async def _history(self, tenant: str, request: ResponseRequest) -> list[Item]:
        options = request.options
        if options.previous_response_id:
            return await history_of(self._queue, tenant, options.previous_response_id)
        conversation = await self._conversations.get(tenant, options.conversation)
        return await self._conversations.items(conversation, complete=True)

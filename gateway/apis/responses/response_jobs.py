"""Responses as jobs: the body with its history, the lifetime and the conversation of each."""

from __future__ import annotations

import asyncio
import contextlib

from gateway.apis.responses.conversation_store import Conversations, Hold
from gateway.apis.responses.response_items import (
    History,
    find_items,
    join_input,
    page_of,
    split_input,
)
from gateway.apis.responses.response_request import ResponseRequest
from gateway.apis.responses.stored_response import StoredResponse, output_items, previous_response
from gateway.core.prompt_limits import MAX_MESSAGES
from gateway.gateway_settings import GatewaySettings
from shared.job.errors import BadRequest, BodyTooLarge, ConversationLocked, NotFound, StreamReset
from shared.job.job import NewJob
from shared.job.responses import ResponseOptions, Turn, job_id_of
from shared.store.conversations import put_back_input, take_out_input
from shared.store.queue import JoinedJob, Queue

_SMALL_BYTES = 4096
"""A body that is not larger is kept as it is."""


class ResponseJobs:
    """Makes the jobs of responses in one gateway process."""

    def __init__(
        self, queue: Queue, conversations: Conversations, settings: GatewaySettings
    ) -> None:
        self._queue = queue
        self._conversations = conversations
        self._settings = settings

    async def complete(self, job: NewJob, request: ResponseRequest) -> NewJob | JoinedJob:
        """The job with its body and lifetime, to be submitted; or the one that its call repeats.

        A repeated call joins before the history is read, which may have changed since. Raises
        BadRequest, NotFound, BodyTooLarge, StreamReset, IdempotencyKeyReused, and StoreError.
        """
        if not request.has_history:
            return self._kept(job._replace(body=request.body), request.options)
        joined = await self._queue.find_keyed(job)
        if joined is not None:
            return joined
        try:
            return self._kept(await self._continued(job, request), request.options)
        except ConversationLocked:
            # Perhaps by the call that this one repeats, which was submitted meanwhile.
            joined = await self._queue.find_keyed(job)
            if joined is None:
                raise
            return joined

    async def input_page(
        self, stored: StoredResponse, *, after: str, limit: int, descending: bool, hold: Hold
    ) -> bytes:
        """A page of the items that a response was made from. Raises NotFound and StreamReset.

        `hold` gets the size of what is read further, then that of the page.
        """
        if stored.up_to.isdecimal():
            conversation = await self._conversations.get(
                stored.job.tenant, stored.options.conversation
            )
            return await self._conversations.items(
                conversation,
                after=after,
                limit=limit,
                descending=descending,
                hold=hold,
                up_to=stored.up_to,
            )
        if stored.up_to:
            await hold(self._settings.max_body_bytes)
        text = await self._input_of(stored)
        # In a thread, which holds the interpreter's lock for one item at a time.
        found = await asyncio.to_thread(
            page_of, text, stored.job.id, after=after, limit=limit, descending=descending
        )
        await hold(len(found))
        return found

    async def delete(self, stored: StoredResponse) -> None:
        """Cancel a response if it has not ended, and delete it. Before that its items are added to
        its conversation, or the input that it took over is put back into the earlier response,
        unless Redis has lost it."""
        queue, options = self._queue, stored.options
        await queue.cancel(stored.job.tenant, stored.job.id)
        if options.conversation:
            await self._conversations.end(stored.job.tenant, options.conversation)
        earlier = job_id_of(options.previous_response_id)
        if earlier and options.previous_head_bytes:
            body, up_to = await queue.stored_request(earlier)
            if up_to == stored.job.id:
                with contextlib.suppress(StreamReset):
                    text = await self._input_of(StoredResponse(stored.job, body, up_to))
                    await put_back_input(queue, earlier, options.previous_head_bytes, up_to, text)
        await queue.delete(stored.job.id)

    async def _input_of(self, stored: StoredResponse) -> bytes:
        """The input of a response that has it in its body, or in that of a later one.

        Raises StreamReset if Redis has lost it.
        """
        body, up_to = stored.body, stored.up_to
        while up_to:
            body, up_to = await self._queue.stored_request(up_to)
            if not body:
                raise StreamReset("Redis has lost the input of this response.")
        text = ResponseOptions.of_body(body).input_of(body)
        if body is stored.body:
            return text
        n_items = stored.options.n_items
        return await asyncio.to_thread(
            lambda: b"[%b]" % b",".join(split_input(text)[:n_items]),
        )

    async def _take_out_before(self, stored: StoredResponse) -> None:
        """Delete the input that is in the response before `stored`, too, from that response's job:
        so of a long chain only the last two responses have the history."""
        earlier, head_bytes = (
            job_id_of(stored.options.previous_response_id),
            stored.options.previous_head_bytes,
        )
        if earlier is None or not head_bytes or stored.up_to or len(stored.body) <= _SMALL_BYTES:
            return
        await take_out_input(self._queue, earlier, head_bytes, stored.job.id)

    async def _continued(self, job: NewJob, request: ResponseRequest) -> NewJob:
        """The job with a body in which the history precedes the input."""
        options, settings, conversation = request.options, self._settings, None
        wanted, owner, previous_head_bytes = request.references, job.id, 0
        if options.previous_response_id:
            stored = await previous_response(self._queue, job.tenant, options.previous_response_id)
            history, owner = await self._history_of(stored), stored.job.id
            previous_head_bytes = stored.options.head_bytes
            await self._take_out_before(stored)
        else:
            conversation, history = await self._conversations.begin(
                job.tenant, options.conversation
            )

        def join() -> tuple[NewJob, tuple[tuple[str, bytes], ...], int]:
            referred = find_items(history, wanted, owner) if wanted else {}
            joined = request.behind(history, referred, job.id, MAX_MESSAGES, previous_head_bytes)
            return job._replace(body=joined.body), joined.own, joined.head_bytes

        # In a thread: a long conversation is as much work as a large body.
        job, own, head_bytes = await asyncio.to_thread(join)
        if len(job.body) > settings.max_body_bytes:
            raise BodyTooLarge(
                f"This input and what is before it are larger than {settings.max_body_bytes} bytes."
            )
        if conversation is None or not options.store:
            return job
        version, ttl_s = conversation.version, settings.conversation_ttl_s
        return job._replace(turn=Turn(conversation.id, version, own, head_bytes, ttl_s))

    async def _history_of(self, stored: StoredResponse) -> History:
        """The items that a response was made from, and its output."""
        if not stored.up_to.isdecimal():
            before = join_input(await self._input_of(stored), stored.options.n_items)
        else:
            try:
                conversation = await self._conversations.get(
                    stored.job.tenant, stored.options.conversation
                )
            except NotFound as error:
                raise BadRequest(
                    "The conversation of the previous response was deleted, and its input with it.",
                    "previous_response_id",
                ) from error
            before = await self._conversations.history(conversation, stored.up_to)
        output = await output_items(self._queue, stored.job) or []
        parts = [*before.parts, *(item for _, item in output)]
        return History(before.n_items + len(output), parts)

    def _kept(self, job: NewJob, options: ResponseOptions) -> NewJob:
        """The job with the lifetime of its response."""
        settings = self._settings
        if not options.store:
            return job
        ttl_s = max(job.ttl_s, settings.response_ttl_s)
        if options.conversation:
            ttl_s = max(ttl_s, settings.conversation_ttl_s)
        job = job._replace(ttl_s=ttl_s)
        if not options.background:
            return job
        # It runs without a client; only a stream has one.
        return job._replace(keep_s=None, gateway=job.gateway if job.stream else "")

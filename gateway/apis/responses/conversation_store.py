"""Conversations (OpenAI's Conversations API): lists of items that responses continue.

Each item is stored by itself, so that a page of items is read alone. A response that is being made
is the conversation's turn: nothing else changes the conversation meanwhile. When it has ended and
the conversation is used again, its items are added (`_free`) and its input is deleted from its job.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.apis.responses.response_items import History, Item, page, stored_item
from gateway.apis.responses.stored_response import output_items
from gateway.core.prompt_limits import MAX_MESSAGES
from gateway.gateway_settings import GatewaySettings
from shared.job.conversation import (
    ConversationLimits,
    Extended,
    ExtendStatus,
    NewConversation,
    StoredItem,
)
from shared.job.errors import (
    BadRequest,
    BodyTooLarge,
    ConversationLocked,
    NotFound,
    QuotaExceeded,
    StreamReset,
)
from shared.job.job import new_job_id
from shared.job.response_id import new_conversation_id, response_id, shard_of_conversation
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.redis.stored_conversations import StoredConversations

_READ_ITEMS = 256
"""Items of one command: Redis serves no other client meanwhile."""


Hold = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may be read for an answer."""


class Conversation(NamedTuple):
    """One conversation, without its items."""

    id: str
    tenant: str
    created_at: int
    metadata: Mapping[str, Any]
    version: str = ""
    """Increases with each change."""
    job: str = ""
    """The job of the response that is its turn; empty: there is none."""

    def shown(self) -> dict[str, Any]:
        """The object that the API shows."""
        shown = {"id": self.id, "created_at": self.created_at, "metadata": self.metadata}
        return {"object": "conversation", **shown}


class Conversations:
    """All conversations of a fleet. Methods raise StoreError."""

    def __init__(
        self,
        queue: Queue,
        new_shard: Callable[[], int],
        settings: GatewaySettings,
        health: Health,
    ) -> None:
        """`new_shard`: a random one, for a new conversation."""
        self._queue = queue
        self._health = health
        self._new_shard = new_shard
        limits = ConversationLimits(
            MAX_MESSAGES, settings.max_body_bytes, settings.conversation_ttl_s
        )
        self._max_items = limits.items
        self._stored = StoredConversations(queue, limits)

    async def create(
        self, tenant: str, metadata: Mapping[str, Any], items: Sequence[Item]
    ) -> Conversation:
        """A new conversation. Raises BadRequest if there are too many items, and QuotaExceeded."""
        conversation_id = new_conversation_id(self._new_shard())
        made = Conversation(conversation_id, tenant, int(time.time()), dict(metadata))
        new = NewConversation(made.created_at, json.dumps(made.metadata))
        await self._extend(made, await _new_items(items), new)
        return made

    async def get(self, tenant: str, conversation_id: str) -> Conversation:
        """The tenant's conversation with this id. Raises NotFound."""
        found = await self._stored.get(conversation_id)
        if found is None or found.tenant != tenant:
            raise NotFound(f"Conversation with id {conversation_id[:64]!r} not found.")
        metadata = json.loads(found.metadata)
        return Conversation(
            conversation_id, tenant, found.created_at, metadata, found.version, found.job
        )

    async def update(self, conversation: Conversation, metadata: Mapping[str, Any]) -> Conversation:
        """The conversation with other metadata."""
        await self._stored.set_metadata(conversation.id, json.dumps(metadata))
        await self._stored.keep(conversation.id)
        return conversation._replace(metadata=metadata)

    async def delete(self, conversation: Conversation) -> None:
        """Delete it with its items; responses that belong to it stay, without their input."""
        await self._stored.delete(conversation.id)

    async def items(
        self,
        conversation: Conversation,
        *,
        after: str,
        limit: int,
        descending: bool,
        hold: Hold,
        up_to: str = "+inf",
    ) -> bytes:
        """A page of its items, as JSON. Raises NotFound if `after` is not among them.

        `after`: the id of the last item of the page before; empty: none. `up_to`: number of the
        last item that counts. `hold` gets its size before it is read.
        """
        await self._free(conversation, running=True)
        ids = await self._stored.item_ids(
            conversation.id, after=after, limit=limit + 1, descending=descending, up_to=up_to
        )
        if ids is None:
            raise _no_item(after)
        await hold(await self._stored.items_bytes(conversation.id, ids[:limit]))
        found = await self._stored.items(conversation.id, ids[:limit])
        await self._stored.keep(conversation.id)
        return page(found, more=len(ids) > limit)

    async def item(self, conversation: Conversation, item_id: str, hold: Hold) -> bytes:
        """One item, as JSON. `hold` gets its size before it is read. Raises NotFound."""
        await self._free(conversation, running=True)
        await hold(await self._stored.items_bytes(conversation.id, [item_id.encode()]))
        found = await self._stored.items(conversation.id, [item_id.encode()])
        if not found:
            raise _no_item(item_id)
        return found[0][1]

    async def append(self, conversation: Conversation, items: Sequence[Item]) -> bytes:
        """Add items at the end; returns them with their ids, as a page.

        Raises BadRequest if there are too many, ConversationLocked and QuotaExceeded.
        """
        await self._free(conversation)
        added = await _new_items(items)
        await self._extend(conversation, added)
        return page(added)

    async def remove(self, conversation: Conversation, item_id: str) -> None:
        """Delete one item. Raises NotFound and ConversationLocked."""
        await self._free(conversation)
        reply = await self._stored.remove(conversation.id, item_id)
        _check(reply, "item_id", _no_item(item_id))

    async def begin(self, tenant: str, conversation_id: str) -> tuple[Conversation, History]:
        """The conversation for its next response, with its items.

        Raises NotFound and ConversationLocked, and BadRequest if it has too many items.
        """
        conversation = await self.get(tenant, conversation_id)
        if conversation.job:
            await self._free(conversation)
            conversation = await self.get(tenant, conversation_id)
        history = await self.history(conversation)
        if history.n_items >= self._max_items:
            raise BadRequest(f"This conversation has {history.n_items} items; start another one.")
        return conversation, history

    async def history(self, conversation: Conversation, up_to: str = "+inf") -> History:
        """Its items, oldest first. `up_to`: number of the last one."""
        ids = await self._stored.all_item_ids(conversation.id, up_to)
        parts: list[bytes] = []
        for first in range(0, len(ids), _READ_ITEMS):
            found = await self._stored.items(conversation.id, ids[first : first + _READ_ITEMS])
            parts += [item for _, item in found]
        return History(len(parts), parts)

    async def end(self, tenant: str, conversation_id: str) -> None:
        """Add the items of the response that is its turn, if that has ended."""
        try:
            await self._free(await self.get(tenant, conversation_id), running=True)
        except NotFound:
            return

    async def _free(self, conversation: Conversation, *, running: bool = False) -> None:
        """Add the items of the response that is its turn, which has ended.

        Of one that has failed, or whose answer Redis has lost, nothing is added. Raises
        ConversationLocked if it has not ended, and BodyTooLarge if its answer is too large to be
        continued; with `running` it stays the turn.
        """
        job_id = conversation.job
        if not job_id:
            return
        [job] = await self._queue.get(job_id)
        if job is not None and not job.state.terminal:
            if running:
                return
            raise _locked(job_id)
        output: list[StoredItem] | None = None
        if job is not None:
            try:
                output = await output_items(self._queue, job)
            except StreamReset:
                output = None
            except BodyTooLarge as error:
                if running:
                    return
                raise BodyTooLarge(f"{error} To go on without it, delete it.") from error
        await self._stored.end_turn(conversation.id, conversation.tenant, job_id, output)

    async def _extend(
        self,
        conversation: Conversation,
        items: Sequence[StoredItem],
        new: NewConversation | None = None,
    ) -> None:
        shard, size = shard_of_conversation(conversation.id), sum(len(item) for _, item in items)
        if shard is not None and not self._health.take(shard, size):
            raise self._health.refusal(shard)
        reply = await self._stored.extend(conversation.id, conversation.tenant, items, new)
        _check(reply, "items", NotFound(f"Conversation with id {conversation.id!r} not found."))


async def _new_items(items: Sequence[Item]) -> list[StoredItem]:
    """New items as they are stored. In a thread: other threads run between two items."""
    owner = new_job_id(1)  # their ids depend on it
    return await asyncio.to_thread(
        lambda: [stored_item(item, owner, number) for number, item in enumerate(items)]
    )


def _check(reply: Extended, param: str, gone: NotFound) -> None:
    """Raise what has kept a change from being made."""
    status, value = reply
    if status is ExtendStatus.GONE:
        raise gone
    if status is ExtendStatus.BUSY:
        raise _locked(value)
    if status is ExtendStatus.KNOWN:
        raise BadRequest(f"The conversation has an item with id {value[:64]!r} already.", param)
    if status in (ExtendStatus.ITEMS, ExtendStatus.BYTES):
        raise BadRequest(f"A conversation may have at most {value} {status}.", param)
    if status is ExtendStatus.CONVERSATIONS:
        raise QuotaExceeded.of("conversations", int(value))
    if status is ExtendStatus.KEPT:
        raise QuotaExceeded.of("bytes", int(value))


def _locked(job_id: str) -> ConversationLocked:
    return ConversationLocked(
        f"The response {response_id(job_id)} of this conversation is being made; "
        "try again when it is complete."
    )


def _no_item(item_id: str) -> NotFound:
    return NotFound(f"Item with id {item_id[:64]!r} not found.")

"""Conversations (OpenAI's Conversations API): lists of items that responses continue.

Each item is stored by itself, so that a page of items is read alone. A response that is being made
is the conversation's turn: nothing else changes the conversation meanwhile. When it has ended and
the conversation is used again, its items are added (`_free`) and its input is deleted from its job.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from gateway.apis.responses.response_items import History, Item, page, stored_item
from gateway.apis.responses.stored_response import output_items
from gateway.core.prompt_limits import MAX_MESSAGES
from gateway.gateway_settings import GatewaySettings
from shared.job.errors import BadRequest, BodyTooLarge, NotFound, StreamReset
from shared.job.job import new_job_id
from shared.job.responses import StoredItem, new_conversation_id
from shared.store.conversations import Conversation, ConversationRecords, locked, no_item
from shared.store.queue import Queue

_READ_ITEMS = 256
"""Items of one command: Redis serves no other client meanwhile."""


Hold = Callable[[int], Awaitable[None]]
"""Waits until so many bytes may be read for an answer."""


class Conversations(ConversationRecords):
    """The conversations, with the responses that are made of them. Methods raise StoreError."""

    def __init__(
        self,
        queue: Queue,
        new_shard: Callable[[], int],
        settings: GatewaySettings,
    ) -> None:
        """`new_shard`: a random one, for a new conversation."""
        super().__init__(queue, MAX_MESSAGES, settings.max_body_bytes, settings.conversation_ttl_s)
        self._new_shard = new_shard

    async def create(
        self, tenant: str, metadata: Mapping[str, Any], items: Sequence[Item]
    ) -> Conversation:
        """A new conversation. Raises BadRequest if there are too many items, and QuotaExceeded."""
        conversation_id = new_conversation_id(self._new_shard())
        made = Conversation(conversation_id, tenant, int(time.time()), dict(metadata))
        await self.extend(made, await _new_items(items), is_new=True)
        return made

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
        ids = await self.item_ids(
            conversation, after=after, limit=limit + 1, descending=descending, up_to=up_to
        )
        await hold(await self.items_bytes(conversation, ids[:limit]))
        found = await self.read_items(conversation, ids[:limit])
        await self.keep(conversation)
        return page(found, more=len(ids) > limit)

    async def item(self, conversation: Conversation, item_id: str, hold: Hold) -> bytes:
        """One item, as JSON. `hold` gets its size before it is read. Raises NotFound."""
        await self._free(conversation, running=True)
        await hold(await self.items_bytes(conversation, [item_id.encode()]))
        found = await self.read_items(conversation, [item_id.encode()])
        if not found:
            raise no_item(item_id)
        return found[0][1]

    async def append(self, conversation: Conversation, items: Sequence[Item]) -> bytes:
        """Add items at the end; returns them with their ids, as a page.

        Raises BadRequest if there are too many, ConversationLocked and QuotaExceeded.
        """
        await self._free(conversation)
        added = await _new_items(items)
        await self.extend(conversation, added)
        return page(added)

    async def remove(self, conversation: Conversation, item_id: str) -> None:
        """Delete one item. Raises NotFound and ConversationLocked."""
        await self._free(conversation)
        await self.remove_item(conversation, item_id)

    async def begin(self, tenant: str, conversation_id: str) -> tuple[Conversation, History]:
        """The conversation for its next response, with its items.

        Raises NotFound and ConversationLocked, and BadRequest if it has too many items.
        """
        conversation = await self.get(tenant, conversation_id)
        if conversation.job:
            await self._free(conversation)
            conversation = await self.get(tenant, conversation_id)
        history = await self.history(conversation)
        if history.n_items >= self._most_items:
            raise BadRequest(f"This conversation has {history.n_items} items; start another one.")
        return conversation, history

    async def history(self, conversation: Conversation, up_to: str = "+inf") -> History:
        """Its items, oldest first. `up_to`: number of the last one."""
        ids = await self.item_ids(conversation, up_to=up_to)
        parts: list[bytes] = []
        for first in range(0, len(ids), _READ_ITEMS):
            found = await self.read_items(conversation, ids[first : first + _READ_ITEMS])
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
        if not conversation.job:
            return
        [job] = await self._queue.get(conversation.job)
        if job is not None and not job.state.terminal:
            if running:
                return
            raise locked(job.id)
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
        await self.end_turn(conversation, output)


async def _new_items(items: Sequence[Item]) -> list[StoredItem]:
    """New items as they are stored. In a thread: other threads run between two items."""
    owner = new_job_id(1)  # their ids depend on it
    return await asyncio.to_thread(
        lambda: [stored_item(item, owner, number) for number, item in enumerate(items)]
    )

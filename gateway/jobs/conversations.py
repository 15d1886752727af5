"""Conversations (OpenAI's Conversations API): lists of items that responses continue.

The items of a response are those of its job, so a job that belongs to a conversation is an entry of
the list. When it has ended and the conversation is read, its items take the job's place: from then
on the conversation does not need the job.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gateway.jobs.response_items import Item, sent_again, shown
from gateway.jobs.stored_response import StoredResponse, final_response
from shared.api.errors import BadRequest, ConversationLocked, NotFound
from shared.platform.redis_client import ResponseError
from shared.platform.settings import Settings
from shared.protocol import keys
from shared.protocol.response_id import response_id
from shared.queue.job_queue import JobQueue


class Conversation(NamedTuple):
    """One conversation, without its items."""

    id: str
    created_at: int
    metadata: Mapping[str, Any]

    def shown(self) -> dict[str, Any]:
        """As the API shows it."""
        return {"object": "conversation", **self._asdict()}


class Conversations:
    """All conversations of a fleet, on the primary server. Methods raise redis' errors."""

    def __init__(self, queue: JobQueue, settings: Settings) -> None:
        self._queue = queue
        self._redis = queue.servers.primary
        self._ttl_ms = int(settings.conversation_ttl_s * 1000)
        self._max_items = settings.max_messages
        self._max_bytes = settings.max_body_bytes

    async def create(
        self, tenant: str, metadata: Mapping[str, Any], items: Sequence[Item]
    ) -> Conversation:
        """A new conversation. Raises BadRequest if there are too many items."""
        made = Conversation(f"conv_{secrets.token_hex(16)}", int(time.time()), metadata)
        await self._write(tenant, made)
        if items:
            await self.append(made, items)
        return made

    async def get(self, tenant: str, conversation_id: str) -> Conversation:
        """The tenant's conversation with this id. Raises NotFound."""
        key = keys.conversation(conversation_id)
        owner, created_at, metadata = await self._redis.hmget(
            key, "tenant", "created_at", "metadata"
        )
        if owner is None or owner.decode() != tenant:
            raise NotFound(f"Conversation with id {conversation_id[:64]!r} not found.")
        return Conversation(conversation_id, int(created_at), json.loads(metadata or b"{}"))

    async def update(
        self, tenant: str, conversation: Conversation, metadata: Mapping[str, Any]
    ) -> Conversation:
        """The conversation with other metadata."""
        changed = conversation._replace(metadata=metadata)
        await self._write(tenant, changed)
        return changed

    async def delete(self, conversation: Conversation) -> None:
        """Delete it with its items; responses that belong to it stay."""
        await self._redis.unlink(
            keys.conversation(conversation.id), keys.conversation_items(conversation.id)
        )

    async def items(self, conversation: Conversation, *, complete: bool = False) -> list[Item]:
        """Its items, oldest first, each with an id.

        `complete`: raises ConversationLocked if a response that belongs to it is being made, and
        BadRequest if there are too many items for another one.
        """
        key = keys.conversation_items(conversation.id)
        found: list[Item] = []
        for number, packed in enumerate(await self._redis.lrange(key, 0, -1)):
            entry = json.loads(packed)
            items = entry.get("items")
            if items is None:
                items = await self._items_of_job(key, number, entry["job"], complete=complete)
            found += items
        if complete and len(found) >= self._max_items:
            raise BadRequest(f"This conversation has {len(found)} items; start another one.")
        await self._keep(conversation.id)
        return found

    async def append(self, conversation: Conversation, items: Sequence[Item]) -> list[Item]:
        """Add items at the end; returns them with their ids. Raises BadRequest if too many."""
        before = await self.items(conversation)
        if len(before) + len(items) > self._max_items:
            raise BadRequest(f"A conversation may have at most {self._max_items} items.", "items")
        added = shown(items, secrets.token_hex(16))
        if len(_pack([*before, *added])) > self._max_bytes:
            raise BadRequest(f"A conversation may have at most {self._max_bytes} bytes.", "items")
        await self._push(conversation.id, {"items": added})
        return added

    async def add_response(self, conversation_id: str, job_id: str) -> None:
        """Add the items of a response, which may not be in the queue yet."""
        await self._push(conversation_id, {"job": job_id})

    async def remove(self, conversation: Conversation, item_id: str) -> None:
        """Delete one item. Raises NotFound."""
        await self.items(conversation)  # the items of jobs that have ended are in the list now
        key = keys.conversation_items(conversation.id)
        for number, packed in enumerate(await self._redis.lrange(key, 0, -1)):
            items = json.loads(packed).get("items") or []
            kept = [item for item in items if item["id"] != item_id]
            if len(kept) < len(items):
                await self._redis.lset(key, number, _pack({"items": kept}))
                return
        raise NotFound(f"Item with id {item_id[:64]!r} not found.")

    async def _items_of_job(
        self, key: str, number: int, job_id: str, *, complete: bool
    ) -> list[Item]:
        """The items of a response: entry `number` of the list."""
        job = await self._queue.get(job_id)
        if job is None:  # deleted, or not in the queue yet
            return []
        if not job.state.terminal:
            if complete:
                raise ConversationLocked(
                    f"The response {response_id(job_id)} of this conversation is being made; "
                    "try again when it is complete."
                )
            return []
        items: list[Item] = []
        final = await final_response(self._queue, job)
        if final is not None:
            stored = StoredResponse(job, await self._queue.request_body(job_id))
            given = shown(await stored.input_items(), job_id)
            items = given[stored.options.n_before :] + shown(sent_again(final["output"]), job_id)
        with contextlib.suppress(ResponseError):  # the conversation was deleted meanwhile
            await self._redis.lset(key, number, _pack({"items": items}))
        return items

    async def _write(self, tenant: str, conversation: Conversation) -> None:
        key = keys.conversation(conversation.id)
        fields = {
            "tenant": tenant,
            "created_at": conversation.created_at,
            "metadata": _pack(conversation.metadata),
        }
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.hset(key, mapping=fields)
            pipeline.pexpire(key, self._ttl_ms)
            await pipeline.execute()

    async def _push(self, conversation_id: str, entry: dict[str, Any]) -> None:
        key = keys.conversation_items(conversation_id)
        async with self._redis.pipeline(transaction=True) as pipeline:
            pipeline.rpush(key, _pack(entry))
            pipeline.pexpire(key, self._ttl_ms)
            await pipeline.execute()

    async def _keep(self, conversation_id: str) -> None:
        async with self._redis.pipeline(transaction=False) as pipeline:
            pipeline.pexpire(keys.conversation(conversation_id), self._ttl_ms)
            pipeline.pexpire(keys.conversation_items(conversation_id), self._ttl_ms)
            await pipeline.execute()


def _pack(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

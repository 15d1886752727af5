"""Stored conversations: a record, the order of the items, and the items by id."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from shared.job.errors import BadRequest, ConversationLocked, NotFound
from shared.job.job import checked_shard
from shared.job.responses import StoredItem, pack_items, response_id, shard_of_conversation
from shared.store import keys
from shared.store.queue import NO_ROOM, Queue, no_room


class Conversation(NamedTuple):
    """One conversation, without its items."""

    id: str
    tenant: str
    created_at: int
    """Unix seconds."""
    metadata: Mapping[str, Any]
    version: str = ""
    """Increases with each change."""
    job: str = ""
    """The job of the response that is its turn; empty: there is none."""

    def shown(self) -> dict[str, Any]:
        """The object that the API shows."""
        shown = {"id": self.id, "created_at": self.created_at, "metadata": self.metadata}
        return {"object": "conversation", **shown}


class ConversationRecords:
    """All conversations of a fleet. Methods raise StoreError."""

    def __init__(self, queue: Queue, most_items: int, most_bytes: int, ttl_s: float) -> None:
        """`most_items`, `most_bytes`: of one conversation, which is kept for `ttl_s` from its last
        use on."""
        self._queue = queue
        self._most_items = most_items
        self._most_bytes = most_bytes
        self._ttl_ms = int(ttl_s * 1000)

    async def get(self, tenant: str, conversation_id: str) -> Conversation:
        """The tenant's conversation with this id. Raises NotFound."""
        shard = shard_of_conversation(conversation_id)
        if shard is not None:
            owner, *words = await self._queue.servers.of(shard).hmget(
                keys.of("conversation", shard, conversation_id),
                "tenant", "created_at", "metadata", "version", "job",
            )  # fmt: skip
            if owner is not None and owner.decode() == tenant:
                created_at, metadata, version, job = (each or b"" for each in words)
                return Conversation(
                    conversation_id,
                    tenant,
                    int(created_at),
                    json.loads(metadata or b"{}"),
                    version.decode(),
                    job.decode(),
                )
        raise NotFound(f"Conversation with id {conversation_id[:64]!r} not found.")

    async def set_metadata(self, conversation: Conversation, metadata: Mapping[str, Any]) -> None:
        """Replace its metadata."""
        shard = _shard(conversation.id)
        key = keys.of("conversation", shard, conversation.id)
        await self._queue.servers.of(shard).hset(key, "metadata", json.dumps(metadata))
        await self.keep(conversation)

    async def delete(self, conversation: Conversation) -> None:
        """Delete it with its items; responses that belong to it stay, without their input."""
        await self._queue.run("delete", _shard(conversation.id), conversation.id)

    async def keep(self, conversation: Conversation) -> None:
        """Its time begins anew."""
        shard = _shard(conversation.id)
        pipeline = self._queue.servers.of(shard).pipeline(transaction=False)
        for word in ("conversation", "conversation_order", "conversation_items"):
            pipeline.pexpire(keys.of(word, shard, conversation.id), self._ttl_ms)
        await pipeline.execute()

    async def item_ids(
        self,
        conversation: Conversation,
        *,
        after: str = "",
        limit: int = -1,
        descending: bool = False,
        up_to: str = "+inf",
    ) -> list[bytes]:
        """The ids of at most `limit` items, of all without it.

        `after`: the id of the last item of the page before; empty: none. `up_to`: number of the
        last item that counts. Raises NotFound if `after` is not among the items, nor was lately.
        """
        shard = _shard(conversation.id)
        redis = self._queue.servers.of(shard)
        order = keys.of("conversation_order", shard, conversation.id)
        low, high = "-inf", up_to
        if after:
            number = await redis.zscore(order, after)
            if number is None:
                number = await redis.get(keys.of("gone", shard, conversation.id, after))
            if number is None:
                raise no_item(after)
            low, high = (low, f"({int(number)}") if descending else (f"({int(number)}", high)
        start, end = (high, low) if descending else (low, high)
        ids: list[bytes] = await redis.zrange(
            order, start, end, byscore=True, desc=descending, offset=0, num=limit
        )
        return ids

    async def read_items(
        self, conversation: Conversation, ids: Sequence[bytes]
    ) -> list[StoredItem]:
        """Those of these items that are there. Redis serves no other client meanwhile."""
        if not ids:
            return []
        shard = _shard(conversation.id)
        key = keys.of("conversation_items", shard, conversation.id)
        values = await self._queue.servers.of(shard).hmget(key, list(ids))
        found = zip(ids, values, strict=True)
        return [(item_id.decode(), value) for item_id, value in found if value is not None]

    async def items_bytes(self, conversation: Conversation, ids: Sequence[bytes]) -> int:
        """The size of these items together."""
        shard = _shard(conversation.id)
        pipeline = self._queue.servers.of(shard).pipeline(transaction=False)
        for item_id in ids:
            pipeline.hstrlen(keys.of("conversation_items", shard, conversation.id), item_id)
        sizes: list[int] = await pipeline.execute()
        return sum(sizes)

    async def extend(
        self, conversation: Conversation, items: Sequence[StoredItem], *, is_new: bool = False
    ) -> None:
        """Add items at its end; if it `is_new` it is made.

        Raises NotFound if it is gone, ConversationLocked, BadRequest if it has one of these items
        already or would have too many, QuotaExceeded and RedisMemoryFull.
        """
        made, shard = ("", ""), _shard(conversation.id)
        if is_new:
            made = (str(conversation.created_at), json.dumps(conversation.metadata))
        arguments = (
            conversation.id, pack_items(items), self._ttl_ms, self._most_items, self._most_bytes,
            conversation.tenant, *made, "", "", *self._queue.rooms[shard],
        )  # fmt: skip
        reply = await self._queue.run("extend_conversation", shard, *arguments)
        gone = NotFound(f"Conversation with id {conversation.id!r} not found.")
        _check(reply, "items", gone)

    async def end_turn(
        self, conversation: Conversation, output: Sequence[StoredItem] | None
    ) -> None:
        """Add the input and the output of its response, which has ended; None: it has none, add
        nothing."""
        arguments = (
            conversation.id, pack_items(output or ()), self._ttl_ms, 0, 0, conversation.tenant,
            "", "", conversation.job, "" if output is None else "1",
        )  # fmt: skip
        await self._queue.run("extend_conversation", _shard(conversation.id), *arguments)

    async def remove_item(self, conversation: Conversation, item_id: str) -> None:
        """Delete one item. Raises NotFound and ConversationLocked."""
        arguments = (conversation.id, item_id, self._ttl_ms)
        reply = await self._queue.run("remove_item", _shard(conversation.id), *arguments)
        _check(reply, "item_id", no_item(item_id))


def _shard(conversation: str) -> int:
    shard = shard_of_conversation(conversation)
    assert shard is not None, f"not a conversation's id: {conversation!r}"
    return shard


def _check(reply: Sequence[bytes], param: str, gone: NotFound) -> None:
    """Raise what has kept a change from being made (extend_conversation.lua)."""
    status, value = (each.decode() for each in reply)
    if reply[0] in NO_ROOM:
        raise no_room(*reply)
    match status:
        case "gone":
            raise gone
        case "busy":
            raise locked(value)
        case "known":
            raise BadRequest(f"The conversation has an item with id {value[:64]!r} already.", param)
        case "items" | "bytes":
            raise BadRequest(f"A conversation may have at most {value} {status}.", param)


def locked(job_id: str) -> ConversationLocked:
    """Its response, which is this job, has not ended."""
    return ConversationLocked(
        f"The response {response_id(job_id)} of this conversation is being made; "
        "try again when it is complete."
    )


def no_item(item_id: str) -> NotFound:
    """For an item that a conversation does not have."""
    return NotFound(f"Item with id {item_id[:64]!r} not found.")


async def take_out_input(queue: Queue, job_id: str, head_bytes: int, later: str) -> None:
    """Take a completed response's input out of its record: that of the job `later` begins with it.

    `head_bytes`: the bytes of the job's body before the input. Raises StoreError.
    """
    shard = checked_shard(later)
    ttl_ms = await queue.servers.of(shard).pttl(keys.job(shard, later))
    arguments = (job_id, head_bytes, "", later, b"[]", ttl_ms)
    await queue.run("replace_input", checked_shard(job_id), *arguments)


async def put_back_input(
    queue: Queue, job_id: str, head_bytes: int, later: str, given: bytes
) -> None:
    """The job `later` is deleted; `given`: the input as JSON. Raises StoreError."""
    arguments = (job_id, head_bytes, later, "", given, "")
    await queue.run("replace_input", checked_shard(job_id), *arguments)

"""Stored conversations: a record, the order of the items, and the items by id."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from shared.job.conversation import (
    ConversationLimits,
    Extended,
    ExtendStatus,
    NewConversation,
    StoredItem,
    pack_items,
)
from shared.job.response_id import shard_of_conversation
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue


class ConversationRecord(NamedTuple):
    """What is stored of a conversation, without its items."""

    tenant: str
    created_at: int
    metadata: bytes
    """JSON."""
    version: str
    """Counted up with each change."""
    job: str
    """Of the response that is its turn; empty: there is none."""


class StoredConversations:
    """All conversations of a fleet. Methods raise StoreError."""

    def __init__(self, queue: JobQueue, limits: ConversationLimits) -> None:
        self._queue = queue
        self.limits = limits

    async def get(self, conversation: str) -> ConversationRecord | None:
        """The record; None if there is no such conversation."""
        shard = shard_of_conversation(conversation)
        if shard is None:
            return None
        owner, created_at, metadata, version, job = await self._queue.servers.of(shard).hmget(
            keys.conversation(shard, conversation),
            "tenant", "created_at", "metadata", "version", "job",
        )  # fmt: skip
        if owner is None:
            return None
        return ConversationRecord(
            owner.decode(),
            int(created_at),
            metadata or b"{}",
            (version or b"").decode(),
            (job or b"").decode(),
        )

    async def set_metadata(self, conversation: str, metadata: str) -> None:
        """`metadata`: JSON."""
        shard = _shard(conversation)
        key = keys.conversation(shard, conversation)
        await self._queue.servers.of(shard).hset(key, "metadata", metadata)

    async def delete(self, conversation: str) -> None:
        """With its items; jobs of its responses stay."""
        await self._queue.run("delete", _shard(conversation), (conversation,))

    async def keep(self, conversation: str) -> None:
        """Its time begins anew."""
        shard = _shard(conversation)
        pipeline = self._queue.servers.of(shard).pipeline(transaction=False)
        for name in (keys.conversation, keys.conversation_order, keys.conversation_items):
            pipeline.pexpire(name(shard, conversation), int(self.limits.ttl_s * 1000))
        await pipeline.execute()

    async def item_ids(
        self, conversation: str, *, after: str, limit: int, descending: bool, up_to: str
    ) -> list[bytes] | None:
        """The ids of at most `limit` items; None if `after` is not among the items, nor was lately.

        `after`: the id of the last item of the page before; empty: none. `up_to`: number of the
        last item that counts.
        """
        shard = _shard(conversation)
        redis, order = self._queue.servers.of(shard), keys.conversation_order(shard, conversation)
        low, high = "-inf", up_to
        if after:
            number = await redis.zscore(order, after)
            if number is None:
                number = await redis.get(keys.gone_item(shard, conversation, after))
            if number is None:
                return None
            low, high = (low, f"({int(number)}") if descending else (f"({int(number)}", high)
        start, end = (high, low) if descending else (low, high)
        ids: list[bytes] = await redis.zrange(
            order, start, end, byscore=True, desc=descending, offset=0, num=limit
        )
        return ids

    async def all_item_ids(self, conversation: str, up_to: str) -> list[bytes]:
        """The ids of its items, oldest first. `up_to`: number of the last one."""
        shard = _shard(conversation)
        order = keys.conversation_order(shard, conversation)
        ids: list[bytes] = await self._queue.servers.of(shard).zrange(
            order, "-inf", up_to, byscore=True
        )
        return ids

    async def items(self, conversation: str, ids: Sequence[bytes]) -> list[StoredItem]:
        """Those of these items that are there. Redis serves no other client meanwhile."""
        if not ids:
            return []
        shard = _shard(conversation)
        key = keys.conversation_items(shard, conversation)
        values = await self._queue.servers.of(shard).hmget(key, list(ids))
        found = zip(ids, values, strict=True)
        return [(item_id.decode(), value) for item_id, value in found if value is not None]

    async def items_bytes(self, conversation: str, ids: Sequence[bytes]) -> int:
        """The size of these items together."""
        shard = _shard(conversation)
        pipeline = self._queue.servers.of(shard).pipeline(transaction=False)
        for item_id in ids:
            pipeline.hstrlen(keys.conversation_items(shard, conversation), item_id)
        sizes: list[int] = await pipeline.execute()
        return sum(sizes)

    async def extend(
        self,
        conversation: str,
        tenant: str,
        items: Sequence[StoredItem],
        new: NewConversation | None = None,
    ) -> Extended:
        """Add items at the end of the tenant's conversation, which is made if it is `new`."""
        quotas, made = self._queue.quotas, (new.created_at, new.metadata) if new else ("", "")
        arguments = (
            conversation, pack_items(items), int(self.limits.ttl_s * 1000), self.limits.items,
            self.limits.bytes, tenant, *made, quotas.conversations, quotas.kept_bytes, "", "",
        )  # fmt: skip
        shard = _shard(conversation)
        return _extended(await self._queue.run("extend_conversation", shard, arguments))

    async def end_turn(
        self, conversation: str, tenant: str, job_id: str, output: Sequence[StoredItem] | None
    ) -> None:
        """Add the input and the output of a response that has ended; None: it has none, add
        nothing."""
        arguments = (
            conversation, pack_items(output or ()), int(self.limits.ttl_s * 1000), 0, 0, tenant,
            "", "", 0, 0, job_id, "" if output is None else "1",
        )  # fmt: skip
        await self._queue.run("extend_conversation", _shard(conversation), arguments)

    async def remove(self, conversation: str, item: str) -> Extended:
        """Delete one item. The status is OK, GONE or BUSY."""
        arguments = (conversation, item, int(self.limits.ttl_s * 1000))
        shard = _shard(conversation)
        return _extended(await self._queue.run("remove_item", shard, arguments))


def _shard(conversation: str) -> int:
    shard = shard_of_conversation(conversation)
    assert shard is not None, f"not a conversation's id: {conversation!r}"
    return shard


def _extended(reply: Sequence[bytes]) -> Extended:
    status, value = reply
    return Extended(ExtendStatus(status.decode()), value.decode())

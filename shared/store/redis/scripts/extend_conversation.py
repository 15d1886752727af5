"""`extend_conversation`: make a conversation, add items to it, or end its response."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from shared.job.conversation import StoredItem, pack_items
from shared.job.quotas import NO_QUOTAS, Quotas
from shared.store.redis.scripts.runner import Scripts


class ExtendStatus(StrEnum):
    """What became of a change of a conversation; only with `OK` anything was changed."""

    OK = "ok"
    GONE = "gone"
    """There is no such conversation, or item."""
    BUSY = "busy"
    """A response of it has not ended, or its items were not added yet; the value is its job."""
    KNOWN = "known"
    """The conversation has an item with the id that is the value."""
    ITEMS = "items"
    """It would have more items than it may; the value is the limit."""
    BYTES = "bytes"
    """It would have more bytes than it may; the value is the limit."""
    CONVERSATIONS = "conversations"
    """The tenant has as many conversations as it may; the value is how many."""
    KEPT = "kept"
    """The tenant would have more bytes than it may; the value is what it has."""


class Extended(NamedTuple):
    """The reply."""

    status: ExtendStatus
    value: str

    @classmethod
    def parse(cls, reply: Sequence[bytes]) -> Extended:
        """Of the script."""
        status, value = reply
        return cls(ExtendStatus(status.decode()), value.decode())


class NewConversation(NamedTuple):
    """What a conversation is made of, but for its items."""

    tenant: str
    created_at: int
    """Unix seconds."""
    metadata: str
    """JSON."""


class ConversationLimits(NamedTuple):
    """Of one conversation."""

    items: int
    bytes: int
    ttl_s: float
    """How long it is kept from now on."""


async def extend(
    scripts: Scripts,
    shard: int,
    conversation: str,
    items: Sequence[StoredItem],
    tenant: str,
    limits: ConversationLimits,
    *,
    quotas: Quotas = NO_QUOTAS,
    new: NewConversation | None = None,
) -> Extended:
    """Add items at the end of a conversation, which is made if it is `new`.

    `tenant`: whose it is. Raises redis' errors.
    """
    reply = await scripts.run(
        "extend_conversation",
        shard,
        (
            conversation,
            pack_items(items),
            int(limits.ttl_s * 1000),
            limits.items,
            limits.bytes,
            tenant,
            new.created_at if new else "",
            new.metadata if new else "",
            quotas.conversations,
            quotas.kept_bytes,
            "",
            "",
        ),
    )
    return Extended.parse(reply)


async def end_turn(
    scripts: Scripts,
    shard: int,
    conversation: str,
    tenant: str,
    job_id: str,
    output: Sequence[StoredItem] | None,
    ttl_s: float,
) -> None:
    """Add the input and the output of a response that has ended; None: it has none, add nothing.

    Raises redis' errors.
    """
    words = (conversation, pack_items(output or ()), int(ttl_s * 1000), 0, 0, tenant)
    completed = "" if output is None else "1"
    await scripts.run("extend_conversation", shard, (*words, "", "", 0, 0, job_id, completed))

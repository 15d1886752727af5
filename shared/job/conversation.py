"""A conversation of the Responses API: what is stored of it beside its items."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from shared.job.packing import pack

StoredItem = tuple[str, bytes]
"""The id of an item, and the item with that id as JSON."""


def pack_items(items: Sequence[StoredItem]) -> bytes:
    """As scripts read them: flat id, JSON, ..."""
    return pack([part for item in items for part in item])


class Turn(NamedTuple):
    """What a response is in its conversation, of which one is made at a time."""

    conversation: str
    version: str
    """That of the conversation whose items are in the body: it must not have changed since."""
    items: tuple[StoredItem, ...]
    """Its own input. It becomes a part of the conversation when the response is complete."""
    head_bytes: int
    """The bytes of the job's body before its input: what is left of it then."""
    ttl_s: float
    """How long the conversation is kept from now on."""

    def pack(self) -> tuple[str, str, bytes, int, int]:
        """As submit.lua reads it."""
        packed = pack_items(self.items)
        return self.conversation, self.version, packed, self.head_bytes, int(self.ttl_s * 1000)


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
    """What became of a change, and a value that the status explains."""

    status: ExtendStatus
    value: str


class NewConversation(NamedTuple):
    """What a conversation is made of, but for its items."""

    created_at: int
    """Unix seconds."""
    metadata: str
    """JSON."""


class ConversationLimits(NamedTuple):
    """The limits of one conversation."""

    items: int
    bytes: int
    ttl_s: float
    """How long it is kept from now on."""

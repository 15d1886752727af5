"""A conversation of the Responses API: what is stored of it beside its items."""

from __future__ import annotations

from collections.abc import Sequence
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
    """Of the conversation whose items are in the job's body: it must not have changed since."""
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

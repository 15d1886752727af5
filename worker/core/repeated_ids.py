"""Ids in an answer that is made again: they are random, and the client has those of the first time.

Where an event that was sent is made again, its ids take the places of the new ones; later events,
which the client does not have, get them too.
"""

from __future__ import annotations

import re

_ID = re.compile(rb'"(?:id|item_id|call_id)": ?("[^"\\]{1,200}")')


class RepeatedIds:
    """The ids of one answer: new -> as the client has it."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[bytes, bytes] = {}

    def learn(self, made: bytes, sent: bytes) -> None:
        """`made` is the event `sent`, made again."""
        new, old = _ID.findall(made), _ID.findall(sent)
        if len(new) == len(old):
            pairs = zip(new, old, strict=True)
            self._known |= {made_id: sent_id for made_id, sent_id in pairs if made_id != sent_id}

    def replaced(self, event: bytes) -> bytes:
        """The event with the ids that the client has."""
        for new, old in self._known.items():
            event = event.replace(new, old)
        return event

"""Splits received bytes into server-sent events. Pure."""

from __future__ import annotations

from typing import NamedTuple


class SseEvent(NamedTuple):
    """One event; comments are left out."""

    name: str
    data: bytes
    id: str


class SseParser:
    """Collects bytes; complete events come out."""

    def __init__(self) -> None:
        self.rest = b""
        """Bytes of an incomplete event."""

    def feed(self, data: bytes) -> list[SseEvent]:
        """Return the events that these bytes complete."""
        *blocks, self.rest = (self.rest + data).split(b"\n\n")
        return [event for block in blocks if (event := _parse(block)) is not None]


def _parse(block: bytes) -> SseEvent | None:
    name, data, event_id = "", [], ""
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"event":
            name = value.decode()
        elif key == b"data":
            data.append(value)
        elif key == b"id":
            event_id = value.decode()
    return SseEvent(name, b"\n".join(data), event_id) if data else None

"""One HTTP/1.1 answer as the load client reads it: its head once, then events counted as bytes."""

from __future__ import annotations

_EVENT = b"data: "
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\n0\r\n\r\n"
_KEPT = len(_EVENT) - 1
assert len(_LAST_CHUNK) == _KEPT + 1, "both are found across two reads by the same kept bytes"


class Answer:
    """Feed it what was read until it is `done`.

    Chunks are not taken apart: an event that a proxy has cut in two inside the word `data: ` is not
    counted, and its answer then fails the client's count.
    """

    __slots__ = (
        "_chunked",
        "_head",
        "_left",
        "_part",
        "_parts",
        "closing",
        "done",
        "events",
        "status",
    )

    def __init__(self) -> None:
        self.status = 0
        self.events = 0
        self.done = False
        self.closing = False
        """The server ends the connection behind this answer."""
        self._head: bytes | None = b""
        self._left = 0
        self._chunked = False
        self._part = b""
        self._parts: list[bytes] | None = None

    @property
    def started(self) -> bool:
        """Something of it has come."""
        return self._head is None or bool(self._head)

    @property
    def body(self) -> bytes:
        """What is not an event stream is kept, framing included."""
        return b"".join(self._parts or ())

    def feed(self, data: bytes) -> int:
        """How many events begin in `data`."""
        if self._head is not None:
            data = self._read_head(self._head + data)
            if self._head is not None:
                return 0
        joined = self._part + data
        if self._chunked:
            self.done = joined.endswith(_LAST_CHUNK)
        else:
            self._left -= len(data)
            self.done = self._left == 0
        if self._parts is not None:
            self._parts.append(data)
            self._part = joined[-_KEPT:]
            return 0
        new = joined.count(_EVENT)
        self.events += new
        self._part = joined[-_KEPT:]
        return new

    def end(self) -> None:
        """The connection has ended: so has an answer of unknown length."""
        self.done = self._head is None and not self._chunked and self._left < 0

    def _read_head(self, data: bytes) -> bytes:
        """What follows the head, if that is complete."""
        head, end, rest = data.partition(_HEAD_END)
        if not end:
            self._head = data
            return b""
        self._head = None
        status_line, *lines = head.split(b"\r\n")
        self.status = int(status_line.split(b" ")[1])
        fields = {}
        for line in lines:
            name, _, value = line.partition(b":")
            fields[name.lower()] = value.strip().lower()
        self.closing = fields.get(b"connection") == b"close"
        self._chunked = fields.get(b"transfer-encoding") == b"chunked"
        self._left = int(fields.get(b"content-length", b"-1"))
        if not fields.get(b"content-type", b"").startswith(b"text/event-stream"):
            self._parts = []
        if self._chunked:
            self._part = b"\n"  # the last chunk may be the first
        return rest

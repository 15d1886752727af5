"""Parses one HTTP/1.1 response for the load client, at the lowest cost per token.

The head is parsed once; in the body only the events of a stream are counted.
"""

from __future__ import annotations

_EVENT = b"data: "
_HEAD_END = b"\r\n\r\n"
_LAST_CHUNK = b"\n0\r\n\r\n"
_KEPT = len(_EVENT) - 1
"""Bytes kept from one read to the next, to find a pattern that is split between them."""
assert len(_LAST_CHUNK) == _KEPT + 1, "the kept bytes must serve for both patterns"


class ResponseParser:
    """Counts events and finds the end of one response. Call `feed` until `done`.

    HTTP chunks are not decoded: an event whose `data: ` is split by a chunk boundary is not
    counted, and the response then fails the client's check of the number of events.
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
        """The server closes the connection after this response."""
        self._head: bytes | None = b""
        self._left = 0
        self._chunked = False
        self._part = b""
        self._parts: list[bytes] | None = None

    @property
    def started(self) -> bool:
        """Whether any byte of it was received."""
        return self._head is None or bool(self._head)

    @property
    def body(self) -> bytes:
        """The body, with its chunk framing; empty for an event stream, which is not kept."""
        return b"".join(self._parts or ())

    def feed(self, data: bytes) -> int:
        """Parse received bytes; return how many events begin in them."""
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
        """The connection was closed, which ends a response of unknown length."""
        self.done = self._head is None and not self._chunked and self._left < 0

    def _read_head(self, data: bytes) -> bytes:
        """Return the bytes after the head, or nothing while the head is incomplete."""
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
            self._part = b"\n"  # the terminating chunk may be the first one
        return rest

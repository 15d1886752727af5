"""W3C trace context: where a span is, and the `traceparent` that names it."""

from __future__ import annotations

import hashlib
import random
import re
from typing import NamedTuple

_TRACEPARENT = re.compile(r"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")


class SpanRef(NamedTuple):
    """A span's place."""

    trace_id: int
    span_id: int
    sampled: bool = True
    """The trace is recorded."""

    @property
    def traceparent(self) -> str:
        """As in the header."""
        return f"00-{self.trace_id:032x}-{self.span_id:016x}-{int(self.sampled):02x}"

    def child(self) -> SpanRef:
        """A new span in this trace."""
        return SpanRef(self.trace_id, _random_id(64))

    def attempt(self, job_id: str, generation: int) -> SpanRef:
        """The span of one attempt at a job: the same in every process.

        `generation`: number of the attempt's lease.
        """
        digest = hashlib.blake2b(f"{job_id} {generation}".encode(), digest_size=8).digest()
        return SpanRef(self.trace_id, int.from_bytes(digest) or 1)


NOT_SAMPLED = SpanRef(1, 1, sampled=False)
"""For a request of which nothing is to be recorded."""


def new_trace() -> SpanRef:
    """The first span of a trace."""
    return SpanRef(_random_id(128), _random_id(64))


def parse(traceparent: str) -> SpanRef | None:
    """None if it is empty or not valid."""
    match = _TRACEPARENT.fullmatch(traceparent)
    if match is None or (match[1] == "00" and match[5]):
        return None
    ref = SpanRef(int(match[2], 16), int(match[3], 16), bool(int(match[4], 16) & 1))
    return ref if ref.trace_id and ref.span_id else None


def trace_id(traceparent: str) -> str:
    """The id as collectors show it; empty if there is none."""
    return traceparent[3:35]


def _random_id(bits: int) -> int:
    return random.getrandbits(bits) or 1

"""A call that has ended, compared with the right answer and with its record. Pure."""

from __future__ import annotations

from load_tests.clients.trial import errors_of
from load_tests.oracle.observation import Observation
from load_tests.oracle.stored_job import StoredJob


class CheckedCall:
    """What its client observed, and what is wrong with it; Redis may have lost its record."""

    def __init__(self, seen: Observation, stored: StoredJob | None = None) -> None:
        self.seen = seen
        self.errors = errors_of(seen, stored, strict=False)

    def __str__(self) -> str:
        seen = self.seen
        reason = "" if seen.complete else f" ({seen.reason})"
        return f"{seen.request.tag}{reason}: {'; '.join(self.errors)}"

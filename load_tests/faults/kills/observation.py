"""What a client observed of one request, from sending it to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from load_tests.faults.kills.answer import Answer
from load_tests.faults.kills.request_classes import KillRequest, Mode
from load_tests.faults.kills.undisturbed import Expected


class End(StrEnum):
    """How a request ended for its client."""

    COMPLETE = "complete"
    """The whole answer came."""
    FAILED = "failed"
    """An error instead of an answer, or in the middle of it."""
    CUT = "cut"
    """The connection ended in the middle of the answer, without an error."""
    HUNG = "hung"
    """The client's time limit passed."""
    REFUSED = "refused"
    """No gateway accepted the request."""


@dataclass(slots=True)
class Observation:
    """One request, as its client observed it. Times are seconds of the monotonic clock."""

    request: KillRequest
    expected: Expected
    began: float
    ended: float = 0.0
    end: End = End.CUT
    code: str = ""
    """The error's code, or what ended the connection."""
    job_id: str = ""
    answer: Answer = field(default_factory=Answer)
    at: list[float] = field(default_factory=list)
    """When each part of a stream came."""
    terminal_events: int = 0
    """Of a job's events: how many said that it has ended."""
    reconnects: int = 0
    """How often a client of a job's events connected again."""
    out_of_order: int = 0
    """Events of a job whose id was not after the one before."""

    @property
    def accepted(self) -> bool:
        """Whether a job was made of it."""
        return self.end is not End.REFUSED

    @property
    def streams(self) -> bool:
        """Whether its client sees the answer grow."""
        if self.request.mode is Mode.CALL:
            return self.request.stream
        return self.request.mode is not Mode.POLLED

"""What a client observed of one request, from sending it to its end."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise

from load_tests.oracle.answer import Answer
from load_tests.oracle.request_classes import Mode, Request
from load_tests.oracle.undisturbed import Expected


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
    LEFT = "left"
    """The client itself closed the connection or cancelled the job, as it should."""


@dataclass(slots=True)
class Observation:
    """One request, as its client observed it. Times are seconds of the monotonic clock."""

    request: Request
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
    out_of_order: int = 0
    """Events of a job whose id was not after the one before."""
    job_texts: dict[int, str] = field(default_factory=dict)
    """The text of each choice in the job's object at its end."""

    @property
    def accepted(self) -> bool:
        """Whether a job was made of it."""
        return self.end is not End.REFUSED

    @property
    def complete(self) -> bool:
        """Whether the whole answer came."""
        return self.end is End.COMPLETE

    @property
    def reason(self) -> str:
        """Why it is not complete, for a table: the error's code or the kind of end."""
        return self.code or str(self.end)

    @property
    def streams(self) -> bool:
        """Whether its client sees the answer grow."""
        if self.request.mode in (Mode.CALL, Mode.LEFT):
            return self.request.stream
        return self.request.mode in (Mode.EVENTS, Mode.RESUMED)

    @property
    def pause_s(self) -> float:
        """The longest time between two parts."""
        return max((after - before for before, after in pairwise(self.at)), default=0.0)

"""What one client saw of one request."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from load_tests.clients.token_difference import Difference, difference, words
from load_tests.faults.checked_request import Question


class End(StrEnum):
    """How it ended for the client."""

    WHOLE = "whole"
    """`[DONE]` with a finish reason, or the job is `completed`."""
    FAILED = "failed"
    """The server told an error after it had accepted the request."""
    CUT = "cut"
    """The connection ended in the middle."""
    HUNG = "hung"
    """Nothing came until the client's patience ended."""
    GONE = "gone"
    """404 for a job that was accepted."""
    REFUSED = "refused"
    """The server did not accept the request, and said so (or could not be connected)."""


@dataclass(slots=True)
class Outcome:
    """A streamed call or a job."""

    question: Question
    is_job: bool
    began: float
    """Of the monotonic clock, as `ended`."""
    ended: float = 0.0
    end: End = End.CUT
    code: str = ""
    """Of the error, or of HTTP."""
    job_id: str = ""
    text: str = ""
    """All that the client got."""
    finish_reason: str = ""
    longest_silence_s: float = 0.0
    """Between the request, its tokens and its end."""
    last_token: float = 0.0
    """When the last one came; the same clock."""
    differences: list[str] = field(default_factory=list)
    """What is wrong with it: tokens that are not the right ones, or a record that differs."""
    record_behind: int = 0
    """Tokens that a client of an answer that failed got, and that are not in the record."""

    @property
    def accepted(self) -> bool:
        return self.end is not End.REFUSED

    @property
    def whole(self) -> bool:
        return self.end is End.WHOLE

    @property
    def hung(self) -> bool:
        return self.end is End.HUNG

    @property
    def reason(self) -> str:
        """Why it is not whole, for a table."""
        return self.code or str(self.end)

    def judge(self) -> None:
        """Compare what the client got with the right answer."""
        self._note("", difference(words(self.text), self.question.tokens, complete=self.whole))

    def judge_record(self, record: dict[str, Any] | None) -> None:
        """Compare with `GET /jobs/<id>`; None if there is none."""
        if record is None:
            return
        text = record.get("text", "")
        if text is None:  # it says that tokens were lost
            self.record_behind = len(words(self.text))
            return
        complete = record["state"] == "completed"
        found = difference(words(text), self.question.tokens, complete=complete)
        self._note("record ", found)
        if self.whole and not complete:
            self.differences.append(f"whole, but its record is {record['state']}")
        if self.whole and text != self.text:
            got, has = len(words(self.text)), len(words(text))
            self.differences.append(f"{got} tokens at the client, {has} in the record")
        elif not self.whole:
            self.record_behind = max(0, len(words(self.text)) - len(words(text)))
        if complete:
            usage = (record.get("usage") or {}).get("completion_tokens")
            if usage != len(self.question.tokens):
                self.differences.append(f"record counts {usage} tokens")

    def _note(self, what: str, found: Difference | None) -> None:
        if found is not None:
            self.differences.append(f"{what}{found}")

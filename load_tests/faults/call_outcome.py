"""What a client observed of one call, and its comparison with the right answer and the record."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from load_tests.clients.token_difference import TokenDifference, find_difference, tokens_of
from load_tests.faults.checked_request import CheckedRequest


class CallEnd(StrEnum):
    """How a call ended for its client."""

    COMPLETE = "complete"
    """`[DONE]` after a finish reason, or the job is `completed`."""
    FAILED = "failed"
    """The server accepted the request and reported an error."""
    CUT = "cut"
    """The connection was closed in the middle of the answer, without an error."""
    HUNG = "hung"
    """The client's time limit passed without an end."""
    GONE = "gone"
    """404 for a job that was accepted."""
    REFUSED = "refused"
    """The server did not accept the request, or could not be reached."""


@dataclass(slots=True)
class CallOutcome:
    """A streamed call or a job, as its client observed it."""

    request: CheckedRequest
    is_job: bool
    began: float
    """Seconds of the monotonic clock, as `ended` and `last_token`."""
    ended: float = 0.0
    end: CallEnd = CallEnd.CUT
    code: str = ""
    """The error's code, or the HTTP status."""
    job_id: str = ""
    text: str = ""
    """All text that the client received."""
    finish_reason: str = ""
    longest_silence_s: float = 0.0
    """The longest time without a token, from the request to the end."""
    last_token: float = 0.0
    errors: list[str] = field(default_factory=list)
    """Wrong tokens, and differences to the job's record."""
    record_behind: int = 0
    """Of a call that failed: tokens that the client received and the record lacks."""

    @property
    def accepted(self) -> bool:
        """Whether the server accepted the request."""
        return self.end is not CallEnd.REFUSED

    @property
    def complete(self) -> bool:
        """Whether the server reported a complete answer."""
        return self.end is CallEnd.COMPLETE

    @property
    def hung(self) -> bool:
        """Whether the client's time limit passed."""
        return self.end is CallEnd.HUNG

    @property
    def reason(self) -> str:
        """Why it is not complete, for a table: the error's code or the kind of end."""
        return self.code or str(self.end)

    def check_tokens(self) -> None:
        """Compare the received text with the right answer; add to `errors`."""
        self._add_difference(
            "", find_difference(tokens_of(self.text), self.request.tokens, complete=self.complete)
        )

    def check_record(self, record: dict[str, Any] | None) -> None:
        """Compare with the job's record, the answer of `GET /jobs/<id>`; None if there is none."""
        if record is None:
            return
        text = record.get("text", "")
        if text is None:  # the record says that tokens were lost
            self.record_behind = len(tokens_of(self.text))
            return
        complete = record["state"] == "completed"
        difference = find_difference(tokens_of(text), self.request.tokens, complete=complete)
        self._add_difference("record ", difference)
        if self.complete and not complete:
            self.errors.append(f"complete, but its record is {record['state']}")
        if self.complete and text != self.text:
            received, recorded = len(tokens_of(self.text)), len(tokens_of(text))
            self.errors.append(f"{received} tokens at the client, {recorded} in the record")
        elif not self.complete:
            self.record_behind = max(0, len(tokens_of(self.text)) - len(tokens_of(text)))
        if complete:
            usage = (record.get("usage") or {}).get("completion_tokens")
            if usage != len(self.request.tokens):
                self.errors.append(f"record counts {usage} tokens")

    def _add_difference(self, prefix: str, difference: TokenDifference | None) -> None:
        if difference is not None:
            self.errors.append(f"{prefix}{difference}")

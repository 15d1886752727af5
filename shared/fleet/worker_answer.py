"""A worker's answer to an operator call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerAnswer:
    """What one worker answered."""

    status: int
    """As of an HTTP response."""
    body: Any
    """JSON; of an answer that is no JSON, its text."""
    seconds: float = 0.0

    @property
    def ok(self) -> bool:
        """Whether the worker has done it."""
        return self.status < 400

    @property
    def message(self) -> str:
        """What went wrong, in words; empty if nothing did."""
        if self.ok:
            return ""
        error = self.body.get("error") if isinstance(self.body, dict) else None
        text = error.get("message") if isinstance(error, dict) else error
        return str(text or self.body or f"status {self.status}")[:1000]

"""Errors that end a run with a message instead of a traceback."""

from __future__ import annotations


class RunError(RuntimeError):
    """A run can't go on; the message says why."""


class WrongAnswerError(RunError):
    """A system did not answer as it must."""

"""Hooks for tests/e2e/test_hooks.py."""

from __future__ import annotations

from worker.hooks.interface import HOLD, Answer, Hold


def upper_in_tens(answer: Answer) -> Hold | None:
    """Hold ten chunks at a time, and change their text."""
    if not answer.final and len(answer.parts) < 10:
        return HOLD
    answer.change_text(str.upper)
    return None

"""Hooks for tests/e2e/test_hooks.py."""

from __future__ import annotations

import os

from worker.hooks.interface import HOLD, Answer, Hold, Request


def upper_in_tens(answer: Answer) -> Hold | None:
    """Hold ten chunks at a time, and change their text."""
    if not answer.final and len(answer.parts) < 10:
        return HOLD
    answer.change_text(str.upper)
    return None


def add_passage(request: Request) -> None:
    """Put the passage of this worker's environment in front of a chat."""
    passage = {"role": "system", "content": os.environ["PASSAGE"]}
    request.body["messages"] = [passage, *request.body["messages"]]

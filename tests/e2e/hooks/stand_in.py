"""Hooks for tests/e2e/hooks/test_hooks.py."""

from __future__ import annotations

import os

from worker.plugins.hooks.hook_types import Request


def add_passage(request: Request) -> None:
    """Put the passage of this worker's environment in front of a chat."""
    passage = {"role": "system", "content": os.environ["PASSAGE"]}
    request.body["messages"] = [passage, *request.body["messages"]]

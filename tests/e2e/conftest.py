"""The fixture `stack`: real processes of a test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Stack


@pytest.fixture
def stack(redis_url: str, tmp_path: Path) -> Iterator[Stack]:
    """A stack in which only Redis runs yet."""
    stack = Stack(redis_url, tmp_path)
    yield stack
    stack.close()

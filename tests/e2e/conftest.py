"""A stack of real processes for one test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.processes import Stack


@pytest.fixture
def stack(redis_url: str, tmp_path: Path) -> Iterator[Stack]:
    """Only Redis runs in it yet."""
    stack = Stack(redis_url, tmp_path)
    yield stack
    stack.close()

"""Programs that start local fleets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.local_processes import LocalProcesses


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalProcesses]:
    """Programs in a folder of their own; none outlives the test."""
    found = LocalProcesses(tmp_path)
    yield found
    found.kill()

"""Processes that are forked from one that has imported everything: they start in milliseconds.

A gateway or a worker takes a second of CPU to import its modules; the tests start hundreds.
"""

from __future__ import annotations

import atexit
import functools
import tempfile
from collections.abc import Mapping
from pathlib import Path

from load_tests.harness.forked_popen import ForkedPopen, ForkedProcesses

MODULES = frozenset({"gateway", "worker"})
"""What can be started this way."""


@functools.cache
def _forked() -> ForkedProcesses:
    """Return this test process's fork server; it ends with the test process."""
    processes = ForkedProcesses(Path(tempfile.mkdtemp(prefix="flotilla-tests-")))
    atexit.register(processes.close)
    return processes


def start_forked(module: str, environment: Mapping[str, str], log: Path) -> ForkedPopen:
    """Start `module`, one of MODULES, with these variables. Its output goes to `log`."""
    return _forked().start(module, log, environment)

"""What the kernel says of a process that a test has started."""

from __future__ import annotations

from pathlib import Path

from tests.harness.fleet import Process


def anonymous_bytes(process: Process) -> int:
    """Resident memory that is no file's. Pages that a forked process shares with the one that has
    forked it count as well, so that the first write to such a page is no growth."""
    for line in Path(f"/proc/{process.popen.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell")


def descriptors(process: Process) -> int:
    """How many files and sockets it has open."""
    return len(list(Path(f"/proc/{process.popen.pid}/fd").iterdir()))

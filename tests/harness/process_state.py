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


def local_ports(process: Process) -> set[int]:
    """The ports of its own ends of TCP connections."""
    folder = Path(f"/proc/{process.popen.pid}")
    sockets = set()
    for file in (folder / "fd").iterdir():
        try:
            sockets.add(str(file.readlink()))
        except FileNotFoundError:  # it was closed meanwhile
            continue
    rows = [line.split() for line in (folder / "net" / "tcp").read_text().splitlines()[1:]]
    return {int(row[1].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}

"""How much memory this machine has left, or the container that this process runs in."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class FreeMemory(NamedTuple):
    """What processes can still take."""

    bytes: int
    """0: not known."""
    limited: bool
    """A control group, as a container's, has less than the machine."""


def free_memory(root: Path = Path("/")) -> FreeMemory:
    """The least of what the machine and each control group around this process have left."""
    try:
        machine = _values(root / "proc/meminfo")["MemAvailable"] * 1024
    except (OSError, KeyError):
        return FreeMemory(0, limited=False)
    group = min(_left_in_groups(root), default=machine)
    return FreeMemory(max(0, min(machine, group)), limited=group < machine)


def _left_in_groups(root: Path) -> Iterator[int]:
    """Of each control group with a limit; versions 1 and 2."""
    groups = root / "proc/self/cgroup"
    for line in groups.read_text().splitlines() if groups.exists() else ():
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            mount, limit, used = root / "sys/fs/cgroup", "memory.max", "memory.current"
        elif "memory" in controllers.split(","):
            mount = root / "sys/fs/cgroup/memory"
            limit, used = "memory.limit_in_bytes", "memory.usage_in_bytes"
        else:
            continue
        group = mount / path.lstrip("/")
        # A container may see its own group as the root, whatever its path outside is.
        for folder in [group, *group.parents][: len(group.parts) - len(mount.parts) + 1]:
            try:
                left = int((folder / limit).read_text()) - int((folder / used).read_text())
                # Pages of files that nobody used of late are given back when others need them.
                yield left + _values(folder / "memory.stat").get("inactive_file", 0)
            except (OSError, ValueError):  # no such group here, or `max`: no limit
                continue


def _values(file: Path) -> dict[str, int]:
    """The numbers of a file with `name value` or `name: value kB` in each line."""
    rows = (line.replace(":", " ").split() for line in file.read_text().splitlines())
    return {row[0]: int(row[1]) for row in rows}

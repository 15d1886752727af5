"""The memory that a machine and its control groups have left."""

from __future__ import annotations

from pathlib import Path

import pytest

from shared.platform.free_memory import FreeMemory, free_memory

MIB = 1 << 20


def files(root: Path, **texts: str) -> None:
    for name, text in texts.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    files(tmp_path, **{"proc/meminfo": "MemTotal: 9000 kB\nMemAvailable:    8192 kB\nX: 3\n"})
    return tmp_path


@pytest.mark.parametrize(
    ("group", "place", "limit", "used"),
    [
        ("0::/a/b", "sys/fs/cgroup/a", "memory.max", "memory.current"),
        ("0::/elsewhere", "sys/fs/cgroup", "memory.max", "memory.current"),
        (
            "7:cpu:/x\n4:memory:/a/b",
            "sys/fs/cgroup/memory/a/b",
            "memory.limit_in_bytes",
            "memory.usage_in_bytes",
        ),
    ],
)
def test_the_smallest_group_around_this_process_counts(
    root: Path, group: str, place: str, limit: str, used: str
) -> None:
    files(root, **{"proc/self/cgroup": group + "\n", f"{place}/{limit}": f"{6 * MIB}\n"})
    stat = f"anon 1\ninactive_file {MIB}\n"
    files(root, **{f"{place}/{used}": f"{3 * MIB}\n", f"{place}/memory.stat": stat})
    assert free_memory(root) == FreeMemory(4 * MIB, limited=True)


def test_a_group_without_a_limit_is_none(root: Path) -> None:
    files(root, **{"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/a/memory.max": "max\n"})
    assert free_memory(root) == FreeMemory(8 * MIB, limited=False)


def test_a_group_may_have_less_than_nothing_left(root: Path) -> None:
    files(root, **{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "5\n"})
    files(root, **{"sys/fs/cgroup/memory.current": "7\n", "sys/fs/cgroup/memory.stat": ""})
    assert free_memory(root) == FreeMemory(0, limited=True)


def test_of_another_system_nothing_is_known(tmp_path: Path) -> None:
    assert free_memory(tmp_path) == FreeMemory(0, limited=False)


def test_a_kernel_may_have_no_groups(root: Path) -> None:
    assert free_memory(root) == FreeMemory(8 * MIB, limited=False)

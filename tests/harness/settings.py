"""All settings in one class, which tests pass to whatever takes those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.fleet.pools import Pools, load_pools
from shared.platform.settings import declared, to_environment

ROOT = Path(__file__).parents[2]
"""The repository."""

PATIENT: dict[str, Any] = {"lease_s": 15, "silence_s": 60}
"""Settings of processes that are not to be taken for lost, however busy the machine is."""


def patience(
    *, header_s: float = 60, write_s: float = 60, buffer_bytes: int = 65_536
) -> dict[str, Any]:
    """Settings of a gateway: how long a client may take to send a head, or read nothing; and how
    much waits for one that is slow."""
    return {
        "header_timeout_s": header_s,
        "write_timeout_s": write_s,
        "stream_buffer_bytes": buffer_bytes,
    }


class Settings(*declared("gateway", "up", "worker", "client")):
    """The settings of every process."""

    @property
    def described(self) -> Pools:
        """The pools that they describe."""
        return load_pools(self)


def child_environment(**values: Any) -> dict[str, str]:
    """This process's environment with no settings but these, for any program."""
    return to_environment("", **values)

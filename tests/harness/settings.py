"""All settings in one class, which tests pass to whatever takes those of one process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from shared.fleet.pools import Pools, load_pools
from shared.platform.settings import declared, to_environment

ROOT = Path(__file__).parents[2]
"""The repository."""


class Settings(*declared("gateway", "up", "worker", "client")):
    """The settings of every process."""

    @property
    def described(self) -> Pools:
        """The pools that they describe."""
        return load_pools(self)


def child_environment(**values: Any) -> dict[str, str]:
    """This process's environment with no settings but these, for any program."""
    return to_environment("", **values)

"""All settings in one class, which tests pass to whatever takes those of one process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from shared.fleet.pools import Pools, load_pools
from shared.platform.settings import PREFIX, declared

ROOT = Path(__file__).parents[2]
"""The repository."""


class Settings(*declared("gateway", "up", "worker", "client")):
    """The settings of every process."""

    @property
    def described(self) -> Pools:
        """The pools that they describe."""
        return load_pools(self)


def child_environment(**values: Any) -> dict[str, str]:
    """This process's environment with these settings, for any program; None removes a setting."""
    found = dict(os.environ)
    for name, value in values.items():
        found.pop(PREFIX + name.upper(), None)
        if value is not None:
            found[PREFIX + name.upper()] = str(value)
    return found

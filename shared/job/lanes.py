"""The lanes of a pool: a better one goes before the others, but for every tenth claim."""

from __future__ import annotations

from typing import Final

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"

CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
"""The names are OpenAI's `service_tier`."""

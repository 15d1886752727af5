"""The lanes of a pool: a better one goes before the others, which keep an eighth of all tokens."""

from __future__ import annotations

from typing import Final

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"

CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
"""The names are OpenAI's `service_tier`."""

"""The lanes of a pool, best first. Their names are OpenAI's `service_tier`."""

from __future__ import annotations

from typing import Final

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"
RETRY_LANE: Final = "retry"
"""Requeued jobs: they have waited already, so they go first. Nothing is submitted to it."""

CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
LANES: Final = (RETRY_LANE, *CLIENT_LANES)

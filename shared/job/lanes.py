"""The lanes of a pool, best first. Their names are OpenAI's `service_tier`."""

from __future__ import annotations

from typing import Final

PRIORITY: Final = "priority"
DEFAULT: Final = "default"
FLEX: Final = "flex"
RETRY_LANE: Final = "retry"
"""Requeued jobs: they have waited already, so they go first. Nothing is submitted to it."""
SUSPECT_LANE: Final = "suspect"
"""Jobs that may have ended their workers: a worker that runs nothing takes one at a time."""
SUSPECT_FROM: Final = 2
"""Attempts without progress that make a job a suspect."""

CLIENT_LANES: Final = (PRIORITY, DEFAULT, FLEX)
SHARED_LANES: Final = (RETRY_LANE, *CLIENT_LANES)
"""Lanes whose jobs run beside each other."""
WAITING_LANES: Final = (*CLIENT_LANES, SUSPECT_LANE)
"""Lanes that have a set of waiting jobs: requeued jobs wait in the lane of their request."""
LANES: Final = (*SHARED_LANES, SUSPECT_LANE)

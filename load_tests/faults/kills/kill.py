"""The kinds of kills."""

from __future__ import annotations

from enum import StrEnum


class KillKind(StrEnum):
    """What is done."""

    WORKER = "worker kill -9"
    """SIGKILL; a replacement starts at once."""
    ENGINE = "engine killed"
    """The engine in the worker dies; the worker ends itself, then a replacement starts."""
    STOP = "worker stopped"
    """SIGSTOP for 0.5 to 3 leases, then SIGCONT."""
    GATEWAY = "gateway kill -9"
    """SIGKILL; started again on the same port at once."""
    REDIS = "Redis kill -9"
    """SIGKILL; started again on the same data at once."""


KILLED = (KillKind.WORKER, KillKind.ENGINE, KillKind.GATEWAY, KillKind.REDIS)
"""Those that end a process. A stopped process is found by its lease only."""

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
    """SIGSTOP for 0.5 to 3 times what makes it lost, then SIGCONT."""
    SILENT = "worker silent"
    """SIGSTOP for good, as a machine that is gone; it is killed and replaced much later."""
    GATEWAY = "gateway kill -9"
    """SIGKILL; started again on the same port at once."""
    REDIS = "Redis kill -9"
    """SIGKILL; started again on the same data at once."""


KILLED = (KillKind.WORKER, KillKind.ENGINE, KillKind.GATEWAY, KillKind.REDIS)
"""Those that end a process, which is noticed at once."""
STOPPED = (KillKind.STOP, KillKind.SILENT)
"""Those that leave a process connected: it is found by its silence only."""

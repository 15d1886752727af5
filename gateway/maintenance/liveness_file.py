"""A sign of life for health checks: a file that is touched while the maintenance process get on.

A maintenance process has no port to ask at. It touches the file when it has done something, and while
there is nothing to do because Redis is away.
"""

from __future__ import annotations

import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from shared.platform.settings import Settings

FRESH_S = 60.0
"""An older file is that of a process that hangs or is gone."""


def path(settings: Settings) -> Path:
    """The file of this user's maintenance processes of this fleet on this machine."""
    where = f"{settings.redis_url}\n{settings.maintenance_redis_url}"
    name = f"flotilla-maintenance-{os.getuid()}-{sha256(where.encode()).hexdigest()[:12]}"
    return Path(tempfile.gettempdir(), name)


def touch(settings: Settings) -> None:
    """We are alive. Raises OSError."""
    # Others may write to this folder too: nobody leads us to another file by a link.
    fd = os.open(path(settings), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def remove(settings: Settings) -> None:
    """We end in good order. Raises OSError."""
    path(settings).unlink(missing_ok=True)


def problem(settings: Settings) -> str:
    """Why the maintenance process do not get on; empty if they do."""
    try:
        age_s = time.time() - path(settings).stat().st_mtime
    except OSError as error:
        return f"no sign of life yet: {error}"
    return "" if age_s < FRESH_S else f"no sign of life for {age_s:.0f} s"


def touched_since(settings: Settings, unix_s: float) -> bool:
    """Whether there was a sign of life since then."""
    try:
        return path(settings).stat().st_mtime >= unix_s
    except OSError:
        return False

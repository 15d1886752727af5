"""The liveness file: the maintenance process touches it while it works; the health check reads it.

The process listens on no port. It touches the file also while Redis can't be reached: a restart
would not help then.
"""

from __future__ import annotations

import os
import tempfile
import time
from hashlib import sha256
from pathlib import Path

from gateway.maintenance.maintenance_settings import MaintenanceSettings

FRESH_S = 60.0
"""If the file is older than this, the process hangs or has ended."""


def path(settings: MaintenanceSettings) -> Path:
    """The file: one for each user, fleet and machine."""
    where = f"{settings.redis_url}\n{settings.maintenance_redis_url}"
    name = f"flotilla-maintenance-{os.getuid()}-{sha256(where.encode()).hexdigest()[:12]}"
    return Path(tempfile.gettempdir(), name)


def touch(settings: MaintenanceSettings) -> None:
    """Create the file or set its time to now. Raises OSError."""
    # Other users may write to this folder too: never follow their link to another file.
    fd = os.open(path(settings), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        os.utime(fd)
    finally:
        os.close(fd)


def remove(settings: MaintenanceSettings) -> None:
    """Delete the file at a regular end. Raises OSError."""
    path(settings).unlink(missing_ok=True)


def problem(settings: MaintenanceSettings) -> str:
    """Why the maintenance process counts as dead; empty if it is alive."""
    try:
        age_s = time.time() - path(settings).stat().st_mtime
    except OSError as error:
        return f"the liveness file was never touched: {error}"
    return "" if age_s < FRESH_S else f"the liveness file was not touched for {age_s:.0f} s"


def touched_since(settings: MaintenanceSettings, unix_s: float) -> bool:
    """Whether the file was touched since then."""
    try:
        return path(settings).stat().st_mtime >= unix_s
    except OSError:
        return False

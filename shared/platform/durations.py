"""Times in sentences for people."""

from __future__ import annotations


def duration(seconds: float) -> str:
    """A time for people: `40 ms`, `3.2 s`, `5 min`, `2.5 h`."""
    seconds = max(0.0, seconds)
    if seconds < 0.9995:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 99.95:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

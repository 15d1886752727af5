"""Negative controls: a part of the product is switched off in the processes of a run.

The run must then fail: that shows that its checks find what they are for. They change the code in
the fork server's memory (tests/harness/fork.py) and are no settings of the product. One that finds
nothing to change raises, so that it can't become void when the code changes.
"""

from __future__ import annotations

from shared.store import scripts

_GENERATION = "job.generation = math.max(now_us(), last + 1)"
_APPENDED = "'NOMKSTREAM', entry_id, 'd', entry"
_QUEUED = "job.state, job.worker = 'queued', ''"
_IS_HEARD = "local function is_heard(worker)"


def _replace_in_scripts(old: str, new: str) -> None:
    """Change the library that processes load from now on. Raises ValueError if `old` is not
    there."""
    prefix, text = scripts.library()
    if old not in text:
        raise ValueError(f"no script contains {old!r}")
    changed = prefix, text.replace(old, new)
    scripts.library = lambda: changed


def fencing() -> None:
    """All workers write in one generation, each behind what the others have written."""
    _replace_in_scripts(_GENERATION, "job.generation = 1")
    _replace_in_scripts(_APPENDED, "'NOMKSTREAM', '1-*', 'd', entry")


def log() -> None:
    """A requeue deletes the job's log."""
    _replace_in_scripts(_QUEUED, f"{_QUEUED} redis.call('DEL', key('log', id))")


def detection() -> None:
    """No tick looks for lost connections: a dead worker is found by its lease only."""
    _replace_in_scripts(_IS_HEARD, f"{_IS_HEARD} do return true end")


CONTROLS = ("fencing", "log", "detection")
"""The functions of this module that are controls, as the command line names them."""

"""Negative controls: a part of the product is switched off in the processes of a run.

The run must then fail: that shows that its checks find what they are for. They change the code in
the fork server's memory (tests/harness/fork.py) and are no settings of the product. One that finds
nothing to change raises, so that it can't become void when the code changes.
"""

from __future__ import annotations

import asyncio

from shared.store.redis.detector import Detector
from shared.store.redis.scripts import loader, runner

_IS_VALID = "function is_fence_valid(worker, fence_token)"
_IS_HELD = "function held(job, lease_id) return FROM.complete[job.state]"


def _replace_in_scripts(*replacements: tuple[str, str]) -> None:
    """Change the Lua text that processes load from now on. Raises ValueError if it is not there."""
    _, whole = loader.library()
    for old, _ in replacements:
        if old not in whole:
            raise ValueError(f"no script contains {old!r}")

    def changed(text: str) -> str:
        for old, new in replacements:
            text = text.replace(old, new)
        return text

    def library() -> tuple[str, str]:
        prefix, text = loader.library()
        return prefix, changed(text)

    def script(name: str) -> str:
        return changed(loader.script(name))

    runner.library, runner.script = library, script  # type: ignore[attr-defined]


def fencing() -> None:
    """Every fencing token is valid, and every running job is the caller's."""
    _replace_in_scripts(
        (f"{_IS_VALID} return", f"{_IS_VALID} return fence_token ~= '' or"),
        (f"{_IS_HELD} and job.lease_id == lease_id", _IS_HELD),
    )


def log() -> None:
    """A requeue deletes the job's log, so the next attempt begins anew."""
    head = "local function queue_again(id, job, attempts, fields, in_turn)"
    _replace_in_scripts((head, f"{head} redis.call('DEL', key('log', id))"))


def detection() -> None:
    """No process looks for lost connections: a dead worker is found by its lease only."""

    async def wait(detector: Detector) -> None:
        await asyncio.get_running_loop().create_future()

    Detector.run = wait  # type: ignore[method-assign,assignment]


CONTROLS = ("fencing", "log", "detection")
"""The functions of this module that are controls, as the command line names them."""

"""Negative controls: a part of the product is switched off in the processes of a run.

The run must then fail: that shows that its checks find what they are for. They change the code in
the fork server's memory (fork_server.py) and are no settings of the product. One that finds nothing
to change raises, so that it can't become void when the code changes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from shared.protocol.scripts import loader


@dataclass(frozen=True, slots=True)
class Control:
    """One part that can be switched off."""

    title: str
    apply: Callable[[], None]


def _replace_in_scripts(old: str, new: str) -> None:
    """Change the Lua text that processes load from now on. Raises ValueError if it is not there."""
    common, body = loader._common, loader._body
    texts = [common(), *(body(name) for name in loader.NAMES)]
    if not any(old in text for text in texts):
        raise ValueError(f"no script contains {old!r}")
    loader._common = lambda: common().replace(old, new)
    loader._body = lambda name: body(name).replace(old, new)


def _without_fencing() -> None:
    """Every fencing token is valid, and every lease is the caller's."""
    _replace_in_scripts(
        "local function is_fence_valid(worker, fence_token) return ",
        "local function is_fence_valid(worker, fence_token) return true or ",
    )


def _without_log() -> None:
    """A requeue deletes the job's log."""
    raise NotImplementedError


def _without_detection() -> None:
    """Nobody looks for lost connections: a dead worker is found by its lease only."""
    raise NotImplementedError


CONTROLS = {
    "fencing": Control("fencing off", _without_fencing),
    "log": Control("log off", _without_log),
    "detection": Control("detection off", _without_detection),
}
"""By the name that the command line takes."""

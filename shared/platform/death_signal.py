"""A child process gets a signal when its parent process ends, however that ends (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
# Loaded here because nothing may be loaded between fork and exec.
_LIBC = ctypes.CDLL(None)


def request_signal(number: signal.Signals) -> None:
    """Ask the kernel to send this process a signal when its parent ends; nothing but on Linux."""
    if sys.platform == "linux":
        _LIBC.prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def signal_at_parent_death(parent: int, number: signal.Signals) -> Callable[[], None]:
    """The same as a `preexec_fn` of subprocess; `parent` is the process id of the caller."""

    def before_exec() -> None:
        request_signal(number)
        if sys.platform == "linux" and os.getppid() != parent:  # it ended before the request
            os._exit(1)

    return before_exec

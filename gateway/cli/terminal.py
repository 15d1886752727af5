"""Ctrl-C under `make up`."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def alone_in_foreground() -> Iterator[None]:
    """Be the terminal's only foreground process during this context.

    Ctrl-C goes to every foreground process: make would get it too and end as "interrupted", even if
    we end without an error. So a process in the foreground group of another one becomes a process
    group of its own and takes the terminal. Without a terminal nothing happens.
    """
    terminal = 0
    group = os.getpgrp()
    try:
        shared = group != os.getpid() and os.tcgetpgrp(terminal) == group
    except OSError:
        shared = False
    if not shared or not sys.stdout.isatty():
        yield
        return
    # The shell would go on waiting if only this group were suspended, so Ctrl-Z is off.
    signal.signal(signal.SIGTSTP, signal.SIG_IGN)
    os.setpgid(0, 0)
    _give_terminal(terminal, os.getpgrp())
    try:
        yield
    finally:
        _give_terminal(terminal, group)


def _give_terminal(terminal: int, group: int) -> None:
    # A background process that touches the terminal is stopped by SIGTTOU.
    before = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
    with contextlib.suppress(OSError):
        os.tcsetpgrp(terminal, group)
    signal.signal(signal.SIGTTOU, before)

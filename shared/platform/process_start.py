"""What every process does first, so that it runs alike however it was started."""

from __future__ import annotations

import os
import sys

from shared.platform.settings import never_proxy_loopback


def prepare() -> None:
    """Call it before any other work. May replace the process by a new one of the same program."""
    _open_standard_streams()
    _use_utf8()
    never_proxy_loopback()


def _open_standard_streams() -> None:
    """Open /dev/null where stdin, stdout or stderr was closed.

    Else the next file or connection would take the number, and what is printed would go there.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is not None:
            continue
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest free number
        setattr(sys, name, open(os.devnull, "w" if number else "r"))  # noqa: SIM115, PTH123


def _use_utf8() -> None:
    """Start anew in Python's UTF-8 mode if the locale has another encoding.

    The names of files would be in that encoding; a path from flotilla.yaml could not be opened.
    """
    if sys.getfilesystemencoding() != "utf-8":
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])  # noqa: S606

"""Our own log lines: short, one a line, on stdout. What libraries print goes to stderr.

`2026-11-22 12:01:02 info    claimed 3 jobs`: a supervisor shows stdout to people and keeps stderr
in a file. Prompts and keys are never logged.
"""

from __future__ import annotations

import logging
import os
import sys
import time
import traceback


def set_up(level: str) -> None:
    """Send the `flotilla` loggers to stdout, and everybody else's stdout to stderr."""
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # child processes and C code inherit this
    sys.stdout = sys.stderr
    handler = logging.StreamHandler(own)
    handler.setFormatter(_FORMATTER)
    root = logging.getLogger("flotilla")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level.upper())


def show_warnings(library: str) -> None:
    """Have a library's warnings written as ours are, on stderr."""
    handler = logging.StreamHandler()
    handler.setFormatter(_FORMATTER)
    logger = logging.getLogger(library)
    logger.handlers = [handler]
    logger.propagate = False
    logger.setLevel(logging.WARNING)


class RareWarning:
    """A warning that clients can cause: written once in `every_s`, with how many were left out."""

    def __init__(self, log: logging.Logger, every_s: float = 10.0) -> None:
        self._log = log
        self._every_s = every_s
        self._next = 0.0  # on the monotonic clock
        self._left_out = 0

    def __call__(self, text: str, *values: object) -> None:
        """Write it, or count it."""
        now = time.monotonic()
        if now < self._next:
            self._left_out += 1
            return
        more = f" ({self._left_out} such lines left out before)" if self._left_out else ""
        self._log.warning(text + more, *values)
        self._next, self._left_out = now + self._every_s, 0


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        if record.exc_info and record.exc_info[1]:
            # The traceback is for those who read log files; the line says what it was.
            traceback.print_exception(record.exc_info[1], file=sys.stderr)
            record.msg = f"{record.getMessage()}: {record.exc_info[1]!r}"
            record.args, record.exc_info, record.exc_text = (), None, None
        # One event is one line, whatever a client put into it.
        return super().format(record).replace("\n", "\\n").replace("\r", "\\r")


_FORMATTER = _Formatter("%(asctime)s %(level)-7s %(message)s", "%Y-%m-%d %H:%M:%S")

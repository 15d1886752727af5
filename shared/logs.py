"""Our own log lines: short, one a line, on stdout. What libraries print goes to stderr.

`12:01:02 info    claimed 3 jobs`: a supervisor shows stdout to people and keeps stderr in a file.
Prompts and keys are never logged.
"""

from __future__ import annotations

import logging
import os
import sys


def set_up(level: str) -> None:
    """Send the `flotilla` loggers to stdout, and everybody else's stdout to stderr."""
    own = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # child processes and C code inherit this
    sys.stdout = sys.stderr
    handler = logging.StreamHandler(own)
    handler.setFormatter(_Formatter("%(asctime)s %(level)-7s %(message)s", "%H:%M:%S"))
    root = logging.getLogger("flotilla")
    root.handlers = [handler]
    root.propagate = False
    root.setLevel(level.upper())


class _Formatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.level = record.levelname.lower()
        # One event is one line, whatever a client put into it.
        return super().format(record).replace("\n", "\\n").replace("\r", "\\r")

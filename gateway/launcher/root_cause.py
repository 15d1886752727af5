"""Why a process failed to start: found in its log, which has the tracebacks of vLLM's processes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

_READ_BYTES = 1 << 20
_LONGEST = 1000
_DETAILS = 3
# vLLM's logger writes `(EngineCore pid=7) ERROR 11-30 12:00:00 [core.py:1100] ` before each line.
_PREFIX = re.compile(r"(\(.*?\bpid=\d+\) )?([A-Z]+ [\d-]+ [\d:]+ \[[^\]]+\] )?")
_TRACEBACK = "Traceback (most recent call last):"
_CHAINED = ("The above exception was the direct", "During handling of the above exception")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*(: .*)?")
_REFUSED = re.compile(r"flotilla[ \w-]*: (.*)")
_ELSEWHERE = re.compile(r"root cause", re.IGNORECASE)
"""In the error of a process that only tells of another one's."""


def find(log: Path, begin: int) -> list[str]:
    """The error in the log from the byte `begin` on: the deepest cause, then what it led to.

    Empty if there is none.
    """
    try:
        with log.open("rb") as file:
            end = file.seek(0, 2)
            if begin > end:  # the file was cut meanwhile
                begin = 0
            file.seek(max(begin, end - _READ_BYTES))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return in_lines(lines)


def in_lines(lines: Iterable[str]) -> list[str]:
    """The same for the lines of a log. Pure."""
    chains: list[list[str]] = []
    chained = inside = False
    details, writer = 0, None
    for whole in lines:
        prefix = _PREFIX.match(whole)
        assert prefix is not None, "both of its parts may be missing"
        line = whole[prefix.end() :].rstrip()
        if refused := _REFUSED.fullmatch(line):
            chains.append([refused[1]])
        elif line.startswith(_CHAINED):
            chained = True
        elif line == _TRACEBACK:
            inside = True
        elif inside and _EXCEPTION.fullmatch(line):
            if not chained:
                chains.append([])
            chains[-1].append(line)
            inside, chained, details, writer = False, False, _DETAILS, prefix[1]
        elif details and line.startswith(" ") and prefix[1] == writer and "File " not in line:
            chains[-1][-1] += f" {line.strip()}"
            details -= 1
        else:
            details = 0
    for chain in reversed(chains):
        if not _ELSEWHERE.search(chain[0]):
            ends = dict.fromkeys((chain[0], chain[-1]))
            return [text[:_LONGEST] for text in ends if not _ELSEWHERE.search(text)]
    return []


def kind(causes: Iterable[str]) -> str:
    """What two errors that are alike have in common: the text without numbers and addresses."""
    return re.sub(r"0x[0-9a-f]+|[\d.]+", "#", "\n".join(causes))

"""What `flotilla up` prints: every line with the name of its process."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

_COLOURS = (36, 33, 35, 32, 34, 31)
_TAIL_LINES = 15
_TAIL_COLUMNS = 200
_TAIL_BYTES = 16 * 1024


class Console:
    """Writes to stdout, without an error when the terminal has been closed."""

    def __init__(self, names: Iterable[str], *, colours: bool) -> None:
        names = list(names)
        width = max(map(len, names), default=0)
        self._prefixes = {}
        for number, name in enumerate(names):
            colour = _COLOURS[number % len(_COLOURS)]
            prefix = f"{name:{width}} |"
            self._prefixes[name] = f"\x1b[{colour}m{prefix}\x1b[0m" if colours else prefix

    def show(self, name: str, line: str) -> None:
        """One line of the process called `name`."""
        self.print(f"{self._prefixes.get(name, name + ' |')} {line}")

    def shower(self, name: str) -> Callable[[str], None]:
        """`show` for one process."""
        return lambda line: self.show(name, line)

    def print(self, text: str) -> None:
        """Text as it is."""
        with contextlib.suppress(OSError, ValueError):  # gone, closed, or can't encode this text
            print(text, flush=True)

    def end_of(self, name: str, log: Path, causes: Sequence[str] = ()) -> None:
        """Why a process ended, else the last lines of its log; and where the rest is."""
        for cause in causes:
            self.show(name, cause)
        if causes:
            self.show(name, f"(more in {log})")
            return
        try:
            with log.open("rb") as file:
                file.seek(max(0, file.seek(0, 2) - _TAIL_BYTES))
                lines = file.read().decode(errors="replace").splitlines()[-_TAIL_LINES:]
        except OSError:
            return
        for line in lines:
            self.show(name, f"  {line[:_TAIL_COLUMNS]}")
        self.show(name, f"(the end of {log})")


def wants_colours(environment: Iterable[str]) -> bool:
    """Whether stdout is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and "NO_COLOR" not in environment

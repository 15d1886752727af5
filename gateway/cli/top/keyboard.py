"""Keys of the terminal, one by one, without Enter."""

from __future__ import annotations

import contextlib
import os
import select
import sys
import termios
import tty
from collections.abc import Iterator

_NAMES = {
    b"\x1b[A": "up",
    b"\x1bOA": "up",
    b"\x1b[B": "down",
    b"\x1bOB": "down",
    b"\x1b": "esc",
    b"\r": "enter",
    b"\n": "enter",
    b"\x7f": "backspace",
    b"\x08": "backspace",
    b"\x03": "ctrl-c",
}


@contextlib.contextmanager
def single_keys() -> Iterator[None]:
    """Standard input gives each key at once, and does not echo it."""
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)
    tty.setcbreak(terminal)
    try:
        yield
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def read_keys(timeout_s: float) -> list[str]:
    """The keys that are pressed within this time; empty if none is."""
    terminal = sys.stdin.fileno()
    ready, _, _ = select.select([terminal], [], [], timeout_s)
    return split_keys(os.read(terminal, 64)) if ready else []


def split_keys(data: bytes) -> list[str]:
    """The keys that a terminal's bytes mean: characters, and `up`, `enter`, `esc`, ..."""
    keys: list[str] = []
    while data:
        name = _NAMES.get(data[:3]) or _NAMES.get(data[:1])
        length = 3 if data[:3] in _NAMES else 1
        if length == 1 and data.startswith((b"\x1b[", b"\x1bO")):
            return keys  # another sequence: a key that has no meaning here
        if name is None:
            name = data.decode(errors="ignore")[:1]
            length = max(1, len(name.encode()))
        keys += [name] if name >= " " else []
        data = data[length:]
    return keys

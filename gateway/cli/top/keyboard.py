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
    keys = []
    while data:
        length = next((n for n in (3, 1) if data[:n] in _NAMES), 0)
        if length:
            keys.append(_NAMES[data[:length]])
            data = data[length:]
        elif data.startswith(b"\x1b"):
            return keys  # another sequence: a key that has no meaning here
        else:
            keys += [
                character for character in data.decode(errors="ignore")[:1] if character >= " "
            ]
            data = data.decode(errors="ignore")[1:].encode()
    return keys

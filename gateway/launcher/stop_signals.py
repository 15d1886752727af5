"""The signals that end `flotilla up`: the first one stops it, a second one forces the end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Iterator

_NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopSignals:
    """Make it in a running event loop."""

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set by the first signal, or by the caller: from then on a signal forces the end."""
        self.force = asyncio.Event()

    @contextlib.contextmanager
    def handled(self) -> Iterator[None]:
        """Handle the signals within this block."""
        loop = asyncio.get_running_loop()
        for number in _NUMBERS:
            loop.add_signal_handler(number, self._on_signal)
        try:
            yield
        finally:
            for number in _NUMBERS:
                loop.remove_signal_handler(number)

    def _on_signal(self) -> None:
        if self.stop.is_set():
            self.force.set()
        self.stop.set()

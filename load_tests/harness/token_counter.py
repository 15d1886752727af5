"""Counts the tokens that the simulated engines of many processes generate, killed ones included."""

from __future__ import annotations

import mmap

from worker.engines.simulated.generation import Sequence

_PROCESSES = 1 << 16
_BYTES = 8


class TokenCounter:
    """A number per process, in memory that all of them share. Make it before the first fork."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, _PROCESSES * _BYTES)).cast("Q")

    def count_in(self, n: int) -> None:
        """Count from now on what the engine of this process generates; it is number `n`."""
        counts, slot, advance = self._counts, n % _PROCESSES, Sequence.advance

        def counted(sequence: Sequence) -> None:
            counts[slot] += 1
            advance(sequence)

        Sequence.advance = counted  # type: ignore[method-assign,assignment]

    def total(self) -> int:
        """Return the sum over all processes."""
        return sum(self._counts)

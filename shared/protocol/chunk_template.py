"""Chunk templates: what stays the same from chunk to chunk of a job travels through Redis once.

The chunks of a token stream are the same JSON but for the few bytes of the text in their middle. So
a chunk is folded to its middle, and the rest is told as lengths: a folded step is a list of items,
in the order of its chunks, where

- bytes are the middle of a chunk, to be put between the head and the tail in force;
- a pair `(n, m)` sets them: the first `n` and the last `m` bytes of the chunk before.

Any bytes can be folded; those that look like the ones before them become short.
"""

from __future__ import annotations

from collections.abc import Sequence

Item = bytes | tuple[int, int]

# How many chunks of a job may better a template that fits already: a stream's second chunk shares
# less with its first, which names a role, than its third with its second. The same holds for what
# comes after a chunk that did not fit, such as the name of a tool before its arguments.
_YOUNG = 6
_YOUNG_AGAIN = 2


class DeltaEncoder:
    """The sender's side of one job."""

    __slots__ = ("_before", "_head", "_length", "_n_head", "_n_tail", "_tail", "_young")

    def __init__(self) -> None:
        self._before = b""
        self._head = b""
        self._tail = b""
        self._n_head = self._n_tail = self._length = 0
        self._young = _YOUNG

    def encode(self, chunks: Sequence[bytes]) -> list[Item]:
        """The next chunks of the job, as items."""
        if len(chunks) == 1 and not self._young:  # as with nearly every token
            (chunk,) = chunks
            if (
                len(chunk) >= self._length
                and chunk.startswith(self._head)
                and chunk.endswith(self._tail)
            ):
                self._before = chunk
                return [chunk[self._n_head : len(chunk) - self._n_tail]]
        items: list[Item] = []
        for chunk in chunks:
            fits = (
                len(chunk) >= self._length
                and chunk.startswith(self._head)
                and chunk.endswith(self._tail)
            )
            if self._young or not fits:
                n, m = _alike(self._before, chunk)
                self._young = max(self._young - 1, 0 if fits else _YOUNG_AGAIN)
                if not fits or n + m > self._length:
                    items.append((n, m))
                    self._head, self._tail = chunk[:n], chunk[len(chunk) - m :]
                    self._n_head, self._n_tail, self._length = n, m, n + m
            items.append(chunk[self._n_head : len(chunk) - self._n_tail])
            self._before = chunk
        return items


class DeltaDecoder:
    """The reader's side of one job: it must see every step, from the first."""

    __slots__ = ("_before", "_head", "_tail")

    def __init__(self) -> None:
        self._before = b""
        self._head = b""
        self._tail = b""

    def decode(self, items: Sequence[Item]) -> bytes:
        """The chunks of one step, back to back."""
        if len(items) == 1 and isinstance(items[0], bytes):
            self._before = self._head + items[0] + self._tail
            return self._before
        chunks = []
        for item in items:
            if isinstance(item, bytes):
                self._before = self._head + item + self._tail
                chunks.append(self._before)
            else:
                n, m = item
                self._head = self._before[:n]
                self._tail = self._before[len(self._before) - m :]
        return b"".join(chunks)


def _alike(before: bytes, chunk: bytes) -> tuple[int, int]:
    """How many bytes at their beginning and at their end two chunks share, up to a quote: what is
    within a JSON string changes as a whole, though two texts may begin with the same letter.
    """
    n = _common(before, chunk)
    n = chunk.rfind(b'"', 0, n) + 1
    most = min(len(before), len(chunk)) - n
    m = _common(before[::-1], chunk[::-1], most)
    quote = chunk.find(b'"', len(chunk) - m) if m else -1
    return n, 0 if quote < 0 else len(chunk) - quote


def _common(a: bytes, b: bytes, most: int | None = None) -> int:
    """The length of the beginning that `a` and `b` share, at most `most`."""
    low, high = 0, min(len(a), len(b)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

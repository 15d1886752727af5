"""Chunk templates: the JSON that is the same in every chunk of a job travels through Redis once.

The chunks of a token stream are the same JSON but for a few bytes of text in their middle. So a
chunk is delta-encoded: only its text is sent, and the template (head and tail) is sent as lengths
when it changes. An encoded step is a list of items, in the order of its chunks, where

- bytes are the text of a chunk, to be put between the head and the tail of the template;
- a pair `(n, m)` sets the template: the first `n` and the last `m` bytes of the chunk before.

Any bytes can be encoded; those that resemble the ones before them become short. Comes from
`worker/core/output_buffer.py`; goes on to `gateway/core/reader.py`.
"""

from __future__ import annotations

from collections.abc import Sequence

Item = bytes | tuple[int, int]

# How many chunks of a job may improve a template that fits already: a stream's second chunk shares
# less with its first, which names a role, than its third with its second. The same holds for chunks
# after one that did not fit, such as the name of a tool before its arguments.
_IMPROVE = 6
_IMPROVE_AGAIN = 2


class DeltaEncoder:
    """The worker's side of one job."""

    __slots__ = ("_before", "_head", "_improvable", "_length", "_n_head", "_n_tail", "_tail")

    def __init__(self, before: DeltaDecoder | None = None) -> None:
        """`before` has decoded what earlier attempts at the job have encoded: this one goes on."""
        self._before, self._head, self._tail = before.state if before else (b"", b"", b"")
        self._n_head, self._n_tail = len(self._head), len(self._tail)
        self._length = self._n_head + self._n_tail
        self._improvable = _IMPROVE

    def encode(self, chunks: Sequence[bytes]) -> list[Item]:
        """The next chunks of the job, as items."""
        if len(chunks) == 1 and not self._improvable:  # as with nearly every token
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
            if self._improvable or not fits:
                n, m = _shared(self._before, chunk)
                self._improvable = max(self._improvable - 1, 0 if fits else _IMPROVE_AGAIN)
                if not fits or n + m > self._length:
                    items.append((n, m))
                    self._head, self._tail = chunk[:n], chunk[len(chunk) - m :]
                    self._n_head, self._n_tail, self._length = n, m, n + m
            items.append(chunk[self._n_head : len(chunk) - self._n_tail])
            self._before = chunk
        return items


class DeltaDecoder:
    """The gateway's side of one job: it needs every step, from the first."""

    __slots__ = ("_before", "_head", "_tail")

    def __init__(self) -> None:
        self._before = b""
        self._head = b""
        self._tail = b""

    @property
    def state(self) -> tuple[bytes, bytes, bytes]:
        """The chunk before, and the head and the tail of the template."""
        return self._before, self._head, self._tail

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


def _shared(before: bytes, chunk: bytes) -> tuple[int, int]:
    """How many bytes two chunks share at their beginning and at their end, up to a quote.

    A JSON string changes as a whole, even if two texts begin with the same letter.
    """
    n = _common(before, chunk)
    n = chunk.rfind(b'"', 0, n) + 1
    most = min(len(before), len(chunk)) - n
    m = _common(before[::-1], chunk[::-1], most)
    quote = chunk.find(b'"', len(chunk) - m) if m else -1
    return n, 0 if quote < 0 else len(chunk) - quote


def _common(a: bytes, b: bytes, most: int | None = None) -> int:
    """The length of the common prefix of `a` and `b`, at most `most`."""
    low, high = 0, min(len(a), len(b)) if most is None else most
    while low < high:
        middle = (low + high + 1) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low

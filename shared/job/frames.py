"""What is published: frames with output for a gateway, control messages for a worker.

A message is one or more frames back to back, each a msgpack array `[job id, seq, generation, kind,
journal, payload]`. The gateway decodes the array (C code), finds the job's reader, completes the
chunk from its template and writes it: no JSON is parsed per token. `seq` is the number of the job's
log entry, so a lost frame shows as a gap and is read from the log. `generation` counts the job's
leases: a frame of the next one is delivered only if it continues what was delivered
(gateway/core/entry_order.py). Journal and payload of a step are its entry in the log
(job_log.py). The journal of the last frame is the number of tokens that all attempts at the job
have generated, nil or empty if no worker ended the job; STARTED has no journal.

Chunks are delta-encoded: the chunks of a token stream are the same JSON but for a few bytes of text
in their middle, so only that text is sent, and the template (head and tail) is sent as lengths when
it changes. An encoded step is a list of items, in the order of its chunks, where

- bytes are the text of a chunk, to be put between the head and the tail of the template;
- a pair `(n, m)` sets the template: the first `n` and the last `m` bytes of the chunk before.

Any bytes can be encoded; those that resemble the ones before them become short.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgpack

from shared.job.packing import pack


class FrameKind(IntEnum):
    """What a frame carries."""

    CHUNK = 0
    """Payload: array of a step's delta-encoded chunks; nil if it sent none."""
    STARTED = 1
    """A worker has leased the job; `seq` is 0. Only for jobs whose events a client reads."""
    DELTAS = 2
    """As CHUNK, of a job whose answer is not streamed, for clients that read its events."""
    DONE = 3
    """The streamed answer is complete; nothing more follows."""
    RESULT = 4
    """Payload: the whole answer, an array `[status, content type, body]`. Nothing follows."""
    ENDED = 5
    """The job ended in another way, which is in its record. Nothing follows."""
    LAST_CHUNK = 6
    """As CHUNK; the end is in the same message, so that both are written at once."""


# Kinds that no frame of the same job follows.
LAST = frozenset({FrameKind.DONE, FrameKind.RESULT, FrameKind.ENDED})

Frame = tuple[bytes, int, int, int, Any, Any]

_HEAD_OF_SIX = b"\x96"  # msgpack's head of an array


def encode(
    job_id: str, seq: int, kind: int, payload: Any, journal: Any = None, generation: int = 1
) -> bytes:
    """One frame; `generation` is that of the job's lease."""
    return pack((job_id, seq, generation, kind, journal, payload))


def encode_head(job_id: str, seq: int, kind: int, generation: int = 1) -> bytes:
    """A frame without journal and payload: the caller appends both, packed."""
    return _HEAD_OF_SIX + pack((job_id, seq, generation, kind))[1:]


def entry_of(frame: bytes, job_id: str, seq: int, generation: int = 1) -> bytes:
    """Journal and payload of a step's frame, packed."""
    return frame[_size_of_head(job_id, seq, generation) :]


def entries_of(
    frames: Sequence[bytes], job_id: str, first: int, generation: int = 1
) -> list[bytes]:
    """`entry_of` for consecutive frames, the first of which has number `first`."""
    size, last = _size_of_head(job_id, first, generation), first + len(frames) - 1
    if size == _size_of_head(job_id, last, generation):
        return [frame[size:] for frame in frames]
    return [entry_of(frame, job_id, seq, generation) for seq, frame in enumerate(frames, first)]


def _size_of_head(job_id: str, seq: int, generation: int) -> int:
    # Heads of the array and the id (a short string), a kind, two numbers.
    return len(job_id) + 3 + _size_of_number(seq) + _size_of_number(generation)


def _size_of_number(n: int) -> int:
    return 1 + (n > 0x7F) + (n > 0xFF) + 2 * (n > 0xFFFF)


class ControlKind(IntEnum):
    """A control message to a worker: an array of the kind and its arguments."""

    DROP = 0
    """The id of a job that others ended. A hint: the worker's next write is refused anyway."""
    JOBS = 1
    """Redis' time, the worker's fencing token, and jobs leased to it, as `acquire` replies them."""
    OPERATE = 2
    """An operator call: its id, the action's name, and the options as JSON."""
    LOOK = 3
    """The id of a job that has to wait: one of the lane flex that the worker runs may make room."""


def encode_operation(operation_id: str, action: str, options: bytes) -> bytes:
    """The control message of an operator call; `options` are JSON."""
    return pack((ControlKind.OPERATE, operation_id, action, options))


def decode_control(message: bytes) -> tuple[ControlKind, Sequence[Any]]:
    """Kind and arguments. Raises ValueError or msgpack's errors if the message is malformed."""
    kind, *rest = msgpack.unpackb(message, raw=True)
    return ControlKind(kind), rest


def decode(message: bytes) -> Iterator[Frame]:
    """The frames of one message. Raises msgpack's errors if the message is malformed."""
    unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
    unpacker.feed(message)
    return iter(unpacker)


Item = bytes | tuple[int, int]

# How many chunks of a job may improve a template that fits already: a stream's second chunk shares
# less with its first, which names a role, than its third with its second. The same holds for chunks
# after one that did not fit, such as the name of a tool before its arguments.
_IMPROVE = 6
_IMPROVE_AGAIN = 2


class DeltaEncoder:
    """Encodes the chunks of one job, in its worker."""

    __slots__ = ("_before", "_head", "_improvable", "_length", "_n_head", "_n_tail", "_tail")

    def __init__(self, before: DeltaDecoder | None = None) -> None:
        """`before` has decoded what earlier attempts at the job have encoded: this one goes on."""
        self._before, self._head, self._tail = before.state if before else (b"", b"", b"")
        self._n_head, self._n_tail = len(self._head), len(self._tail)
        self._length = self._n_head + self._n_tail
        self._improvable = _IMPROVE

    def text(self, chunk: bytes) -> bytes | None:
        """The next chunk as its text, as with nearly every token; None: call `encode` for it."""
        n = len(chunk)
        if (
            self._improvable
            or n < self._length
            or not (chunk.startswith(self._head) and chunk.endswith(self._tail))
        ):
            return None
        self._before = chunk
        return chunk[self._n_head : n - self._n_tail]

    def encode(self, chunks: Sequence[bytes]) -> list[Item]:
        """The next chunks of the job, as items."""
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
    """Decodes the chunks of one job, in a gateway: it needs every step, from the first."""

    __slots__ = ("before", "head", "tail")

    def __init__(self) -> None:
        self.before = b""
        """The last chunk."""
        self.head = b""
        """Of the template, as `tail`."""
        self.tail = b""

    @property
    def state(self) -> tuple[bytes, bytes, bytes]:
        """The chunk before, and the head and the tail of the template."""
        return self.before, self.head, self.tail

    def decode(self, items: Sequence[Item]) -> bytes:
        """The chunks of one step, back to back."""
        chunks = []
        for item in items:
            if isinstance(item, bytes):
                self.before = self.head + item + self.tail
                chunks.append(self.before)
            else:
                n, m = item
                self.head = self.before[:n]
                self.tail = self.before[len(self.before) - m :]
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

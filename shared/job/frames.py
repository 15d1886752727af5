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

from shared.job.log import DeltaDecoder as DeltaDecoder
from shared.job.log import DeltaEncoder as DeltaEncoder
from shared.job.log import Item as Item
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

"""What travels over pub/sub: frames with tokens for a gateway, and words for a worker.

A message is one or more frames back to back, each a msgpack array `[job id, seq, kind, payload]`.
The gateway decodes the array (C code), finds the job's reader, puts the chunk's envelope around the
payload and writes it: no JSON is parsed per token. `seq` is the number of the job's log entry, so a
lost frame shows as a gap and is read from the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Any

import msgpack


class FrameKind(IntEnum):
    """What a frame carries."""

    CHUNK = 0
    """Payload: a step's folded chunks (envelope.py), an array; nil if the step sent none."""
    STARTED = 1
    """A worker has leased the job; `seq` is 0. Only for jobs whose events somebody reads."""
    DELTAS = 2
    """Payload: packed deltas (token_log.py) of a job whose answer is not streamed. For events."""
    DONE = 3
    """The streamed answer is complete; nothing more follows."""
    RESULT = 4
    """Payload: the whole answer, an array `[status, content type, body]`. Nothing follows."""
    ENDED = 5
    """The job ended in another way: its hash says how. Nothing follows."""


# Kinds that no frame of the same job follows.
LAST = frozenset({FrameKind.DONE, FrameKind.RESULT, FrameKind.ENDED})

_pack = msgpack.Packer(autoreset=True).pack

Frame = tuple[bytes, int, int, Any]


def encode(job_id: str, seq: int, kind: FrameKind, payload: Any) -> bytes:
    """One frame."""
    frame: bytes = _pack((job_id, seq, kind, payload))
    return frame


def encode_head(job_id: str, seq: int, kind: FrameKind) -> bytes:
    """A frame that lacks its payload, which is packed behind it."""
    head: bytes = _pack((job_id, seq, kind))
    return b"\x94" + head[1:]


class ControlKind(IntEnum):
    """What a worker is told: an array of the kind and what belongs to it."""

    DROP = 0
    """A job's id: it was ended by somebody else. A hint, the scripts' replies are the truth."""
    JOBS = 1
    """Redis' time and jobs, as the acquire script returns them: they are leased to this worker."""


def decode_control(message: bytes) -> tuple[ControlKind, Sequence[Any]]:
    """Raises ValueError or one of msgpack's errors if it is none of ours."""
    kind, *rest = msgpack.unpackb(message, raw=True)
    return ControlKind(kind), rest


def decode(message: bytes) -> Iterator[Frame]:
    """The frames of one message. Raises msgpack's errors if it is none of ours."""
    unpacker: Any = msgpack.Unpacker(raw=True, use_list=False, max_buffer_size=0)
    unpacker.feed(message)
    return iter(unpacker)

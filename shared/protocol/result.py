"""The end of a job, as its worker tells it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgpack

from shared.protocol.frames import FrameKind, encode, encode_head
from shared.protocol.job import LeasedJob
from shared.protocol.record import ResponseInfo
from shared.protocol.states import JobEvent

# A longer answer is not sent along in the frame that tells of it: the gateway reads the hash.
INLINE_RESULT_BYTES = 64 << 10

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack
_THREE = b"\x93"  # msgpack's head of an array of three


@dataclass(frozen=True, slots=True)
class JobResult:
    """How a worker ends a job."""

    event: JobEvent
    error_code: str
    status: int
    content_type: str
    body: bytes
    """Empty for a streamed answer: its chunks are in the log."""
    prompt_tokens: int
    completion_tokens: int


def _head_of(body: bytes) -> bytes:
    """What msgpack puts before it."""
    packed: bytes = _pack(body)
    return packed[: len(packed) - len(body)]


def pack_result(
    job: LeasedJob, watchers: str, seq: int, segment: bytes, answer: JobResult
) -> tuple[Any, ...]:
    """What lua/emit.lua takes. `seq`: of the last entry; `segment`: those not in the log yet."""
    streamed = job.stream and answer.status == 200
    inline = not streamed and len(answer.body) <= INLINE_RESULT_BYTES
    if inline:
        # The script puts the body behind it: it goes into the job's hash as well.
        frame = encode_head(job.id, seq, FrameKind.RESULT, job.generation)
        frame += (
            _pack(answer.completion_tokens)
            + _THREE
            + _pack(answer.status)
            + _pack(answer.content_type)
            + _head_of(answer.body)
        )
    else:
        kind = FrameKind.DONE if streamed else FrameKind.ENDED
        frame = encode(job.id, seq, kind, b"", answer.completion_tokens, job.generation)
    ending = ResponseInfo(
        answer.status, answer.content_type, answer.prompt_tokens, answer.completion_tokens
    )
    return (
        job.id, job.lease_id, seq, segment, answer.completion_tokens, answer.event,
        answer.error_code, watchers, frame, inline, answer.body, ending.pack(),
    )  # fmt: skip

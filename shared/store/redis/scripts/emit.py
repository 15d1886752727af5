"""Packs the output of one engine step for `emit`, which stores and publishes it.

A token comes from `worker/core/publisher.py`; it goes on, by pub/sub, to
`gateway/core/relay.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from shared.job.advertised_slots import NO_UPDATE, SlotUpdate
from shared.job.frames import FrameKind, encode, encode_head
from shared.job.job import LeasedJob
from shared.job.packing import pack
from shared.job.record import ResponseInfo, pack_headers
from shared.job.replies import Fenced
from shared.job.result import JobResult
from shared.job.step_log import JobOutput, LogFlush
from shared.store.connection import Argument
from shared.store.redis.scripts.runner import job_states

_ARRAY_OF_THREE = b"\x93"  # msgpack's head


@dataclass(frozen=True, slots=True)
class Step:
    """The arguments of one engine step."""

    frame_sizes: bytes
    """msgpack array of the frames' lengths in bytes; empty if there are no frames."""
    frames: bytes
    """Frames, back to back."""
    messages: Sequence[tuple[str, bytes]]
    """Gateways, and the frames that each gets; empty: all frames."""
    flushes_and_results: bytes
    """msgpack of `[[id, segment, ...], [job result, ...]]`; empty if there are none."""


def pack_emit(
    worker: str,
    fence_token: str,
    step: Step,
    slots: SlotUpdate | None,
    *,
    repeated: bool = False,
) -> tuple[Argument, ...]:
    """The script's arguments."""
    return (
        worker, fence_token, int(repeated), step.frame_sizes, step.frames,
        step.flushes_and_results, *(slots or NO_UPDATE),
        *[part for message in step.messages for part in message],
    )  # fmt: skip


def parse_emit(reply: Sequence[bytes] | None) -> dict[str, str]:
    """The jobs whose result came too late: id -> state. Raises Fenced."""
    if reply is None:
        raise Fenced
    return job_states(reply)


def make_step(outputs: Sequence[JobOutput], log_flushes: Sequence[LogFlush] = ()) -> Step:
    """One step of one worker and shard. A job may occur in `outputs` only once."""
    # One loop without a call for a job that goes on: this runs for every token.
    sizes: list[int] = []
    frames: list[bytes] = []
    subscribers: list[str] = []
    results: list[Any] = []
    for stream, frame, final in outputs:
        if final is not None:
            results.append(
                pack_result(stream.job, stream.watchers, final.seq, final.segment, final.result)
            )
        if frame and (final is None or stream.subscribers):
            sizes.append(len(frame))
            frames.append(frame)
            subscribers.append(stream.subscribers)
    flushes_and_results = b""
    if log_flushes or results:
        flat = [part for log_flush in log_flushes for part in log_flush]
        flushes_and_results = pack((flat, results))
    return Step(
        frame_sizes=pack(sizes) if sizes else b"",
        frames=b"".join(frames),
        messages=_messages(subscribers, frames),
        flushes_and_results=flushes_and_results,
    )


def _messages(subscribers: Sequence[str], frames: Sequence[bytes]) -> list[tuple[str, bytes]]:
    """Which frames each gateway gets; `subscribers` are the gateways of each frame."""
    if len(set(subscribers)) == 1:
        return [(gateway, b"") for gateway in subscribers[0].split()]
    messages: dict[str, list[bytes]] = {}
    for gateways, frame in zip(subscribers, frames, strict=True):
        for gateway in gateways.split():
            messages.setdefault(gateway, []).append(frame)
    return [(gateway, b"".join(frames)) for gateway, frames in messages.items()]


def pack_result(
    job: LeasedJob, watchers: str, seq: int, segment: bytes, result: JobResult
) -> tuple[Any, ...]:
    """A job result of the script's arguments.

    `seq` is the number of the job's last entry, `segment` holds the entries before it that are not
    in the job's log yet.
    """
    # A body: the endpoint does not stream what this request asks for.
    streamed = job.stream and result.status == 200 and not result.body
    # A frame has no room for headers: the gateway reads these from the record, with the body.
    stored = result.inline
    inline = not streamed and not result.headers and len(stored) == len(result.body)
    if inline:
        # The script appends the body: it is stored in the job's record as well.
        frame = encode_head(job.id, seq, FrameKind.RESULT, job.generation)
        frame += (
            pack(result.completion_tokens)
            + _ARRAY_OF_THREE
            + pack(result.status)
            + pack(result.content_type)
            + _head_of(result.body)
        )
    else:
        kind = FrameKind.DONE if streamed else FrameKind.ENDED
        frame = encode(job.id, seq, kind, b"", result.completion_tokens, job.generation)
    response = ResponseInfo(
        result.status, result.content_type, result.prompt_tokens, result.completion_tokens,
        len(result.body), result.cached_tokens,
    )  # fmt: skip
    return (
        job.id, job.lease_id, seq, segment, result.completion_tokens, result.event,
        result.error_code, watchers, frame, inline, stored, response.pack(),
        pack_headers(result.headers) if result.headers else "", int(result.first_output_s * 1e6),
        result.prompt_tokens, result.cached_tokens, len(result.body),
    )  # fmt: skip


def _head_of(body: bytes) -> bytes:
    """What msgpack puts in front of it."""
    packed = pack(body)
    return packed[: len(packed) - len(body)]

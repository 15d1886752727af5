"""A step: one write for all jobs of a worker, and which gateways receive it."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest

from shared.job.frames import FrameKind, decode, encode, entry_of
from shared.job.job import LeasedJob
from shared.job.job_log import pack_segment
from shared.job.result import INLINE_RESULT_BYTES, JobResult
from shared.job.states import JobEvent
from shared.job.step_log import FLUSH_AFTER, STEPS, FinalEntry, JobOutput, JobStream, LogFlush
from shared.store.redis.scripts.emit import make_step, pack_result
from tests.unit.steps import parse_step

DONE = JobResult(JobEvent.COMPLETE, "", 200, "text/event-stream", b"", 1, 2)


def job(name: str = "a", **changes: Any) -> LeasedJob:
    fields: dict[str, Any] = {
        "id": name,
        "shard": 0,
        "lease_id": f"lease id of {name}",
        "generation": 1,
        "fence_token": "e-1",
        "attempt": 1,
        "stream": True,
        "endpoint": "/e",
        "body": b"{}",
        "watchers": "gw-1",
        "watched": False,
        "waited_s": 0.0,
    }
    return LeasedJob(**(fields | changes))


def frame(name: str, seq: int = 1, generation: int = 1) -> bytes:
    return encode(
        name, seq, FrameKind.CHUNK, [b"text of %s" % name.encode()], generation=generation
    )


def token_output(name: str = "a", seq: int = 1, **changes: Any) -> JobOutput:
    return JobStream(job(name, **changes)), frame(name, seq, changes.get("generation", 1)), None


def final_output(
    name: str = "a", *, has_output: bool = True, answer: JobResult = DONE, **changes: Any
) -> JobOutput:
    """The end of a job, with its first and only entry if `has_output`."""
    chunk = frame(name) if has_output else b""
    segment = pack_segment(1, [entry_of(chunk, name, 1)]) if has_output else b""
    return (
        JobStream(job(name, **changes)),
        chunk,
        FinalEntry(2 if has_output else 1, segment, answer),
    )


def received_by(*outputs: JobOutput) -> dict[str, list[str]]:
    """The jobs in the frames that each gateway receives."""
    step = make_step(outputs)
    return {
        gateway: [each[0].decode() for each in decode(message or step.frames)]
        for gateway, message in step.messages
    }


def test_an_entry_is_flushed_before_it_falls_out_of_the_step_log() -> None:
    assert FLUSH_AFTER < STEPS


def test_a_step_is_its_frames_back_to_back_and_their_places() -> None:
    step = make_step([token_output("a"), token_output("b", 300, generation=7)])
    assert step.frames == frame("a") + frame("b", 300, 7)
    assert msgpack.unpackb(step.frame_sizes) == [len(frame("a")), len(frame("b", 300, 7))]
    assert step.flushes_and_results == b""
    outputs = parse_step(step).outputs
    assert {name: (each.seq, each.generation) for name, each in outputs.items()} == {
        "a": (1, 1),
        "b": (300, 7),
    }


def test_a_message_with_all_frames_is_not_sent_twice() -> None:
    """The script has them already."""
    step = make_step(
        [token_output("a", watchers="gw-1 gw-2"), token_output("b", watchers="gw-1 gw-2")]
    )
    assert step.messages == [("gw-1", b""), ("gw-2", b"")]


def test_each_gateway_receives_its_jobs_in_one_message() -> None:
    assert received_by(
        token_output("a", watchers="gw-1"),
        token_output("b", watchers="gw-2"),
        token_output("c", watchers="gw-1 gw-2"),
        token_output("d", watchers=""),
        token_output("e", watchers="gw-1"),
    ) == {"gw-1": ["a", "c", "e"], "gw-2": ["b", "c"]}


@pytest.mark.parametrize(
    ("stream", "watched", "expected"),
    [(True, False, True), (False, True, True), (False, False, False)],
)
def test_steps_are_published_for_streams_and_watched_jobs(
    stream: bool, watched: bool, expected: bool
) -> None:
    output = token_output(stream=stream, watched=watched)
    assert received_by(output) == ({"gw-1": ["a"]} if expected else {})
    # The step log has it in any case.
    assert make_step([output]).frames == frame("a")


def test_new_watchers_become_subscribers() -> None:
    job_stream = JobStream(job(stream=False))
    assert (job_stream.watchers, job_stream.subscribers) == ("gw-1", "")
    job_stream.set_watchers("gw-1 gw-2", watched=True)
    assert (job_stream.watchers, job_stream.subscribers) == ("gw-1 gw-2", "gw-1 gw-2")
    job_stream.set_watchers("gw-2", watched=False)
    assert (job_stream.watchers, job_stream.subscribers) == ("gw-2", "")


def test_an_end_brings_its_entries_and_its_answer() -> None:
    outputs = parse_step(make_step([token_output("a"), final_output("b")])).outputs
    assert outputs["a"].end is None
    end = outputs["b"].end
    assert end
    assert (end.seq, end.lease_id, end.watchers, end.answer) == (2, "lease id of b", "gw-1", DONE)
    assert [entry.seq for entry in end.before] == [1]
    assert outputs["b"].chunks == b"text of b"  # and gateways receive the text that came with it


def test_output_with_an_end_is_no_step_if_no_gateway_receives_it() -> None:
    step = make_step(
        [
            final_output("a", watchers=""),
            final_output("b", stream=False),
            final_output("c", has_output=False),
        ]
    )
    assert (step.frame_sizes, step.frames, step.messages) == (b"", b"", [])
    assert set(parse_step(step).outputs) == {"a", "b", "c"}


def test_log_flushes_may_be_of_jobs_without_output() -> None:
    segments = {name: pack_segment(1, [entry_of(frame(name), name, 1)]) for name in ("b", "c")}
    parts = parse_step(
        make_step([token_output("a")], [LogFlush(name, part) for name, part in segments.items()])
    )
    assert set(parts.outputs) == {"a"}
    assert parts.segments == segments


def test_a_step_of_nothing_is_nothing() -> None:
    step = make_step([])
    assert (step.frame_sizes, step.frames, step.messages, step.flushes_and_results) == (
        b"",
        b"",
        [],
        b"",
    )


# --- the last frame of a job ---


def last_frame(leased: LeasedJob, answer: JobResult) -> tuple[tuple[Any, ...], bool, bytes]:
    """The frame as readers get it, whether the script appends the body, and the body."""
    packed = pack_result(leased, "gw-1", 2, b"", answer)
    message, inline, body = packed[8:11]
    if inline:
        message += body  # as the script does
    (found,) = decode(message)
    return found, inline, body


def test_the_last_frame_of_a_complete_stream_is_done() -> None:
    found, inline, _ = last_frame(job(), DONE)
    assert (found[1:5], inline) == ((2, 1, FrameKind.DONE, DONE.completion_tokens), False)


@pytest.mark.parametrize("size", [0, 1, 31, 32, 255, 256, 65535])
def test_a_body_of_any_size_follows_its_head(size: int) -> None:
    answer = JobResult(JobEvent.COMPLETE, "", 200, "text/plain", b"x" * size, 1, 0)
    found, inline, body = last_frame(job(stream=False), answer)
    assert (found[5][2], inline) == (body, True)


@pytest.mark.parametrize("stream", [True, False])
def test_a_whole_answer_comes_with_its_end(stream: bool) -> None:
    refused = JobResult(JobEvent.FAIL, "rejected", 400, "application/json", b"{}", 1, 0)
    found, inline, body = last_frame(job(stream=stream), refused)
    assert found == (b"a", 2, 1, FrameKind.RESULT, 0, (400, b"application/json", b"{}"))
    assert (inline, body) == (True, b"{}")


@pytest.mark.parametrize(("more", "kind"), [(0, FrameKind.RESULT), (1, FrameKind.ENDED)])
def test_a_long_answer_is_to_be_fetched(more: int, kind: FrameKind) -> None:
    body = b"x" * (INLINE_RESULT_BYTES + more)
    answer = JobResult(JobEvent.COMPLETE, "", 200, "application/json", body, 1, 2)
    found, inline, sent = last_frame(job(stream=False), answer)
    assert (found[1:5], inline) == ((2, 1, kind, 2), kind is FrameKind.RESULT)
    assert sent == (b"" if more else body)  # stored before, in pieces

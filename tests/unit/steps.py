"""Parses the steps that a worker sends, for tests."""

from __future__ import annotations

import json
from dataclasses import dataclass

import msgpack

from shared.job.frames import DeltaDecoder, decode, entry_of
from shared.job.job_log import Delta, Entry, Prompt, pack_segment, parse_segments, read_journal
from shared.job.record import ResponseInfo
from shared.job.result import JobResult
from shared.job.states import JobEvent
from shared.store.redis.scripts.emit import Step


@dataclass(frozen=True)
class SentResult:
    """The result of a job and the final entry of its log."""

    lease_id: str
    seq: int
    """Of the final entry."""
    segment: bytes
    watchers: str
    answer: JobResult

    @property
    def before(self) -> list[Entry]:
        """The entries that are written to the log with it."""
        return parse_segments([self.segment]) if self.segment else []


@dataclass(frozen=True)
class SentOutput:
    """What one job sends in a step: an entry, a result, or both."""

    entry: Entry | None
    generation: int
    end: SentResult | None

    @property
    def seq(self) -> int:
        assert self.entry is not None, "there is no entry"
        return self.entry.seq

    @property
    def chunks(self) -> bytes:
        """What the client gets, if no chunk contains a quote."""
        return DeltaDecoder().decode(self.entry.items) if self.entry else b""

    @property
    def journal(self) -> list[Delta | Prompt]:
        return read_journal(self.entry.journal, self.entry.items) if self.entry else []

    @property
    def answer(self) -> JobResult | None:
        return self.end.answer if self.end else None


@dataclass(frozen=True)
class StepContent:
    """The content of a step, by job."""

    outputs: dict[str, SentOutput]
    segments: dict[str, bytes]
    """The log flushes of jobs that go on."""

    @property
    def log_flushes(self) -> dict[str, list[int]]:
        """The numbers of the entries in each flush."""
        return {
            name: [entry.seq for entry in parse_segments([segment])]
            for name, segment in self.segments.items()
        }


def parse_step(step: Step) -> StepContent:
    """The content of a step; asserts that no job occurs twice and that the frame sizes fit."""
    sizes = msgpack.unpackb(step.frame_sizes) if step.frame_sizes else []
    entries: dict[str, Entry] = {}
    generations: dict[str, int] = {}
    at = 0
    for length in sizes:
        frame, at = step.frames[at : at + length], at + length
        ((job_id, seq, generation, _, _, _),) = decode(frame)
        name = job_id.decode()
        assert name not in entries, "a job occurs twice in one call"
        entry = entry_of(frame, name, seq, generation)
        (entries[name],) = parse_segments([pack_segment(seq, [entry])])
        generations[name] = generation
    assert at == len(step.frames)
    flat, endings = (
        msgpack.unpackb(step.flushes_and_results, raw=True, use_list=False)
        if step.flushes_and_results
        else ((), ())
    )
    segments = {name.decode(): segment for name, segment in zip(flat[::2], flat[1::2], strict=True)}
    assert 2 * len(segments) == len(flat), "a job occurs twice in one call"
    ends = {ending[0].decode(): _ended(*ending) for ending in endings}
    assert len(ends) == len(endings), "a job ends twice in one call"
    names = [*entries, *(name for name in ends if name not in entries)]
    return StepContent(
        {
            name: SentOutput(entries.get(name), generations.get(name, 0), ends.get(name))
            for name in names
        },
        segments,
    )


def _ended(
    _: bytes,
    lease_id: bytes,
    seq: int,
    segment: bytes,
    tokens: int,
    event: bytes,
    code: bytes,
    watchers: bytes,
    frame: bytes,
    inline: bool,
    body: bytes,
    packed: bytes,
    headers: bytes,
    first_us: int,
    *counted: int,
) -> SentResult:
    ending = ResponseInfo(*msgpack.unpackb(packed))
    assert tokens == ending.completion_tokens
    assert counted == (ending.prompt_tokens, ending.cached_tokens, ending.result_bytes)
    assert first_us >= 0
    stored = ending._asdict()
    assert stored.pop("result_bytes") == len(body) or not body  # that is in pieces
    answer = JobResult(
        event=JobEvent(event.decode()),
        error_code=code.decode(),
        body=body,
        headers=tuple(json.loads(headers or b"{}").items()),
        **stored,
    )
    return SentResult(lease_id.decode(), seq, segment, watchers.decode(), answer)

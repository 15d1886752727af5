"""Decodes a step of a worker's emit call, for assertions."""

from __future__ import annotations

from dataclasses import dataclass

import msgpack

from shared.protocol.chunk_template import DeltaDecoder
from shared.protocol.frames import decode, entry_of
from shared.protocol.job_log import Delta, Entry, Prompt, pack_segment, parse_segments, read_journal
from shared.protocol.record import ResponseInfo
from shared.protocol.result import JobResult
from shared.protocol.scripts.emit import Step
from shared.protocol.states import JobEvent


@dataclass(frozen=True)
class Ended:
    """The result of a job in a step."""

    lease_id: str
    seq: int
    """Number of the last entry."""
    segment: bytes
    watchers: str
    answer: JobResult

    @property
    def before(self) -> list[Entry]:
        """The entries that are appended to the log with the result."""
        return parse_segments([self.segment]) if self.segment else []


@dataclass(frozen=True)
class Said:
    """The output of one job in a step: an entry, a result, or both."""

    entry: Entry | None
    generation: int
    end: Ended | None

    @property
    def seq(self) -> int:
        assert self.entry is not None, "it has no entry"
        return self.entry.seq

    @property
    def chunks(self) -> bytes:
        """The chunks that its client gets."""
        return DeltaDecoder().decode(self.entry.items) if self.entry else b""

    @property
    def journal(self) -> list[Delta | Prompt]:
        return read_journal(self.entry.journal, self.entry.items) if self.entry else []

    @property
    def answer(self) -> JobResult | None:
        return self.end.answer if self.end else None


@dataclass(frozen=True)
class Parts:
    """A decoded step."""

    said: dict[str, Said]
    segments: dict[str, bytes]
    """Segments appended to the logs of jobs that have not ended."""

    @property
    def log_flushes(self) -> dict[str, list[int]]:
        """The numbers of the entries in these segments, by job."""
        return {
            name: [entry.seq for entry in parse_segments([segment])]
            for name, segment in self.segments.items()
        }


def take_apart(step: Step) -> Parts:
    """Decode a step; asserts that no job is in it twice and that the frame sizes are right."""
    sizes = msgpack.unpackb(step.frame_sizes) if step.frame_sizes else []
    entries: dict[str, Entry] = {}
    generations: dict[str, int] = {}
    at = 0
    for length in sizes:
        frame, at = step.frames[at : at + length], at + length
        ((job_id, seq, generation, _, _, _),) = decode(frame)
        name = job_id.decode()
        assert name not in entries, "a job is in one call twice"
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
    assert 2 * len(segments) == len(flat), "a job is in one call twice"
    ends = {ending[0].decode(): _ended(*ending) for ending in endings}
    assert len(ends) == len(endings), "a job ends twice in one call"
    names = [*entries, *(name for name in ends if name not in entries)]
    return Parts(
        {name: Said(entries.get(name), generations.get(name, 0), ends.get(name)) for name in names},
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
) -> Ended:
    ending = ResponseInfo(*msgpack.unpackb(packed))
    assert tokens == ending.completion_tokens
    answer = JobResult(
        event=JobEvent(event.decode()), error_code=code.decode(), body=body, **ending._asdict()
    )
    return Ended(lease_id.decode(), seq, segment, watchers.decode(), answer)

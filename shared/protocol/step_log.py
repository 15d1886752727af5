"""The step log: what all jobs of a worker say after an engine step leaves in one write.

Redis works per step, not per job and token. The log is a list per worker and shard, of the last
`STEPS` steps. A step is two elements: the lengths of its frames (a msgpack array), and the frames
(channel.py), back to back, which are what gateways get too. An entry is put into its job's own log
(token_log.py) together with its neighbours, at the latest with the last step before it would fall
out here; a worker that is lost leaves what others need. The first entry of an attempt is put there
by the call that publishes it, so a job without a log has shown nothing to anyone, whatever became
of its worker: only such a job may be started anew.

Who may write is decided per worker as well. Its fence in Redis is a fencing token that it must know. A
script that changes a job in its hands (cancel, expire, reap, watch, ...) takes the fence away: the
worker's next write is refused, it asks for the jobs that are still its own and for their listeners
(lua/renew.lua), and gets a new fencing token with the answer. A job may be spoken of in the fencing token only in
which it was leased or renewed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgpack

from shared.protocol.job import LeasedJob
from shared.protocol.result import JobResult, pack_result

FLUSH_AFTER = 32
"""Steps after which an entry is put into its job's log, with those that followed it."""
STEPS = FLUSH_AFTER + 4
"""So many are kept. A repeated call may leave a step twice."""

_pack = msgpack.Packer(use_bin_type=False, autoreset=True).pack


class JobStream:
    """A job in a worker's hands, and what the worker knows of it."""

    __slots__ = ("ears", "fence_token", "generation", "job", "watchers")

    def __init__(self, job: LeasedJob) -> None:
        self.job = job
        self.generation = job.generation
        self.fence_token = job.fence_token
        """In which the job was the worker's own and the rest was true."""
        self.listen(job.watchers, watched=job.watched)

    def listen(self, watchers: str, *, watched: bool) -> None:
        """`watchers`: the gateways that wait for the end; `watched`: for each step, too."""
        self.watchers = watchers
        self.ears = watchers if self.job.stream or watched else ""
        """The gateways that hear of each step."""


class FinalEntry(NamedTuple):
    """How a job ends with a step."""

    seq: int
    """Number of the last entry, which tells of the end."""
    segment: bytes
    """The entries before it that are not in the job's log yet, those of the step included."""
    answer: JobResult


JobOutput = tuple[JobStream, bytes, FinalEntry | None]
"""What one job has to say after an engine step: its frame, empty if there is only an end."""


class LogFlush(NamedTuple):
    """Entries on their way into the log of their job."""

    job_id: str
    segment: bytes


@dataclass(frozen=True, slots=True)
class Step:
    """What lua/emit.lua takes."""

    places: bytes
    """Empty if no job goes on."""
    frames: bytes
    messages: Sequence[tuple[str, bytes]]
    """Gateways, and what each is to hear; empty: all frames."""
    rest: bytes
    """Packed log flushes and endings; empty if there are none."""


def make_step(outputs: Sequence[JobOutput], log_flushes: Sequence[LogFlush] = ()) -> Step:
    """One step of one worker and shard. A job may stand in it only once."""
    # One loop, and no call for who goes on: this is done for every token.
    places: list[int] = []
    frames: list[bytes] = []
    heard_by: list[str] = []
    endings: list[Any] = []
    for speaker, frame, end in outputs:
        if end is not None:
            answer, segment = end.answer, end.segment
            endings.append(pack_result(speaker.job, speaker.watchers, end.seq, segment, answer))
        if frame and (end is None or speaker.ears):
            places.append(len(frame))
            frames.append(frame)
            heard_by.append(speaker.ears)
    rest = b""
    if log_flushes or endings:
        rest = _pack(([part for log_flush in log_flushes for part in log_flush], endings))
    return Step(
        places=_pack(places) if places else b"",
        frames=b"".join(frames),
        messages=_messages(heard_by, frames),
        rest=rest,
    )


def _messages(heard_by: Sequence[str], frames: Sequence[bytes]) -> list[tuple[str, bytes]]:
    if len(set(heard_by)) == 1:
        return [(gateway, b"") for gateway in heard_by[0].split()]
    messages: dict[str, list[bytes]] = {}
    for ears, frame in zip(heard_by, frames, strict=True):
        for gateway in ears.split():
            messages.setdefault(gateway, []).append(frame)
    return [(gateway, b"".join(frames)) for gateway, frames in messages.items()]

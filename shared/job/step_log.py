"""The step log: one write per engine step with the output of all jobs of a worker.

Redis works per step, not per job and token. A step log is a list per worker and shard, of the last
`STEPS` steps. A step is two elements: the lengths of its frames (a msgpack array), and the frames
(frames.py) back to back, as gateways get them. An entry is flushed to its job's own log
(job_log.py) together with its neighbours, at the latest before its step would drop out of the step
log. So all output that a lost worker has published is in Redis.

The first entry of an attempt is put into the job's log by the call that publishes it. Whatever
takes a job from its worker flushes the rest, and the next attempt continues the log.

Who may write is decided per worker as well. Its fence in Redis is a fencing token that it must
present. A script that changes a job that a worker holds (cancel, expire, reap, watch, ...) deletes
the fence: the worker's next write is refused, it renews (scripts/renew.lua), and gets a new token
together with the jobs that it still holds and their watchers. A worker may write for a job only
with the token under which the job was leased or last renewed.
"""

from __future__ import annotations

from typing import NamedTuple

from shared.job.job import LeasedJob
from shared.job.result import JobResult

FLUSH_AFTER = 32
"""Steps after which an entry is put into its job's log, with those that followed it."""
STEPS = FLUSH_AFTER + 4
"""So many are kept. A repeated call may leave a step twice."""


class JobStream:
    """The output side of a job that a worker holds."""

    __slots__ = ("__weakref__", "fence_token", "generation", "job", "subscribers", "watchers")

    def __init__(self, job: LeasedJob) -> None:
        self.job = job
        self.generation = job.generation
        self.fence_token = job.fence_token
        """The token under which the worker held the job and the rest was true."""
        self.set_watchers(job.watchers, watched=job.watched)

    def set_watchers(self, watchers: str, *, watched: bool) -> None:
        """`watchers`: the gateways that wait for the end; `watched`: for each step, too."""
        self.watchers = watchers
        self.subscribers = watchers if self.job.stream or watched else ""
        """The gateways that get each step, with spaces between them."""


class FinalEntry(NamedTuple):
    """How a job ends with a step."""

    seq: int
    """Number of the last entry, which holds the terminal state."""
    segment: bytes
    """The entries before it that are not in the job's log yet, those of the step included."""
    result: JobResult


JobOutput = tuple[JobStream, bytes, FinalEntry | None]
"""The output of one job in one engine step: its frame, empty if the job only ends."""


class LogFlush(NamedTuple):
    """Entries to be put into the log of their job."""

    job_id: str
    segment: bytes

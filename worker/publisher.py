"""The publisher: all output of one engine step leaves in one script call per shard.

Runs put what they have to say into their outbox; at the end of the step, when every run has spoken,
one flush gathers it. While a call is on its way, later steps pile up and leave together with the
next one, so a slow Redis makes calls larger, not more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.queue import Answer, Emission, JobQueue
from shared.redis import UNAVAILABLE, RedisError, unwritable
from shared.token_log import Delta, Prompt, Transcript, pack_journal

log = logging.getLogger("flotilla.publisher")

T = TypeVar("T")

# Output that no engine step follows (an error before the first token) leaves after this time.
_NO_STEP_S = 0.005
_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)


class Outbox:
    """What one job has produced and not sent yet. It is the engine's `Journal` of the job."""

    __slots__ = (
        "_publisher",
        "_records",
        "chunks",
        "dropped",
        "entered",
        "job",
        "seq",
        "transcript",
    )

    def __init__(self, job: LeasedJob, publisher: Publisher) -> None:
        self.job = job
        self.chunks: list[bytes] = []
        self.transcript = Transcript.empty()
        self.entered = False
        """The engine has taken the job in."""
        self.seq = 0
        """Number of the last log entry that was made."""
        self.dropped = False
        """The job is not ours any more: nothing of it is sent."""
        self._records: list[Delta | Prompt] = []
        self._publisher = publisher

    def prompt(self, call: int, n_tokens: int) -> None:
        # Sent with the first delta: as long as its log is empty, another worker may start the job.
        self.entered = True
        self._records.append(Prompt(call, n_tokens))
        self.transcript.add(self._records[-1:])

    def delta(self, call: int, index: int, token_ids: Sequence[int], text: str) -> None:
        self._records.append(Delta(call, index, list(token_ids), text))
        self.transcript.add(self._records[-1:])
        self._publisher.mark(self)

    def chunk(self, data: bytes) -> None:
        """Bytes for the client."""
        self.chunks.append(data)
        self._publisher.mark(self)

    def take(self) -> Emission | None:
        """Everything unsent, as the next log entry."""
        if self.dropped or not (self.chunks or self._records):
            return None
        self.seq += 1
        journal = pack_journal(self._records) if self._records else b""
        emission = Emission(self.job, self.seq, b"".join(self.chunks), journal)
        self.chunks, self._records = [], []
        return emission


class _Ending:
    """A job's answer on its way to Redis."""

    __slots__ = ("answer", "outbox", "verdict")

    def __init__(self, outbox: Outbox, answer: Answer, verdict: asyncio.Future[str]) -> None:
        self.outbox = outbox
        self.answer = answer
        self.verdict = verdict


class Publisher:
    """Sends outboxes; `on_lost(job, state)` hears of leases that this worker has lost."""

    def __init__(
        self, queue: JobQueue, metrics: WorkerMetrics, on_lost: Callable[[LeasedJob, str], None]
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._on_lost = on_lost
        self._unsent: dict[Outbox, None] = {}  # a set that keeps its order
        self._endings: list[_Ending] = []
        self._wake = asyncio.Event()
        self._no_step: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def mark(self, outbox: Outbox) -> None:
        """The outbox has something to send."""
        self._unsent[outbox] = None
        if self._no_step is None:
            self._no_step = self._loop.call_later(_NO_STEP_S, self._flush)

    def step(self) -> None:
        """The engine has ended a step: the runs it has woken speak before the next callback."""
        self._metrics.steps.inc()
        self._loop.call_soon(self._flush)

    async def finish(self, outbox: Outbox, answer: Answer) -> str:
        """Send what is left and end the job.

        Returns 'ok', or the state the job is in for somebody else, or 'dropped'.
        """
        ending = _Ending(outbox, answer, self._loop.create_future())
        self._endings.append(ending)
        self._flush()
        return await ending.verdict

    def _flush(self) -> None:
        if self._no_step is not None:
            self._no_step.cancel()
            self._no_step = None
        if self._unsent or self._endings:
            self._wake.set()

    async def run(self) -> None:
        """Send whatever there is, one batch at a time; ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            endings, self._endings = self._endings, []
            shards: dict[int, tuple[list[Outbox], list[_Ending]]] = {}
            for outbox in unsent:
                shards.setdefault(outbox.job.shard, ([], []))[0].append(outbox)
            for ending in endings:
                shards.setdefault(ending.outbox.job.shard, ([], []))[1].append(ending)
            # A shard keeps its order; shards do not wait for each other.
            if len(shards) == 1:
                ((shard, batch),) = shards.items()
                await self._send(shard, *batch)
            else:
                async with asyncio.TaskGroup() as group:
                    for shard, batch in shards.items():
                        group.create_task(self._send(shard, *batch))

    async def _send(self, shard: int, outboxes: list[Outbox], endings: list[_Ending]) -> None:
        emissions = [e for e in (outbox.take() for outbox in outboxes) if e is not None]
        if emissions:
            self._metrics.flushes.inc()
            lost = await self._insist(outboxes, lambda: self._queue.emit(shard, emissions))
            for emission in emissions:
                if lost and emission.job.id in lost:
                    self._on_lost(emission.job, lost[emission.job.id])
        # Their calls run side by side; none depends on another.
        await asyncio.gather(*(self._end(ending) for ending in endings))

    async def _end(self, ending: _Ending) -> None:
        outbox = ending.outbox
        seq = outbox.seq + 1
        verdict = await self._insist(
            [outbox], lambda: self._queue.finish(outbox.job, seq, ending.answer)
        )
        if not ending.verdict.done():
            ending.verdict.set_result(verdict or "dropped")

    async def _insist(self, outboxes: list[Outbox], call: Callable[[], Awaitable[T]]) -> T | None:
        """Repeat an idempotent call until Redis takes it; None once all its jobs are dropped."""
        tries = 0
        while not all(outbox.dropped for outbox in outboxes):
            try:
                return await call()
            except (RedisError, OSError) as error:
                if not (isinstance(error, UNAVAILABLE) or unwritable(error)):
                    raise
                if tries == 0:
                    log.warning("Redis does not take tokens: %s", error)
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1
        return None

"""The publisher: all output of one engine step leaves in one script call per shard.

Runs put what they have to say into their outbox; at the end of the step, when every run has spoken,
one flush gathers it. While a call is on its way, later steps pile up and leave together with the
next one, so a slow Redis makes calls larger, not more.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import NamedTuple

from shared.envelope import Folder
from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.offers import Offers
from shared.queue import Answer, Emission, JobQueue, make_emission
from shared.redis import UNAVAILABLE, RedisError, unwritable
from shared.token_log import NO_CHUNKS, Delta, Prompt, pack_chunks, pack_journal

log = logging.getLogger("flotilla.publisher")

# Output that no engine step follows (an error before the first token) leaves after this time.
_NO_STEP_S = 0.005
_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_CALL_BYTES = 1 << 20


class Outbox:
    """What one job has produced and not sent yet. It is the engine's `Journal` of the job."""

    __slots__ = (
        "_chunks",
        "_folder",
        "_publisher",
        "_records",
        "_seq",
        "completion_tokens",
        "dropped",
        "entered",
        "job",
        "prompt_tokens",
    )

    def __init__(self, job: LeasedJob, publisher: Publisher) -> None:
        self.job = job
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.entered = False
        """The engine has taken the job in."""
        self.dropped = False
        """The job is not ours any more: nothing of it is sent."""
        self._seq = 0  # number of the last log entry that was made
        self._chunks: list[bytes] = []
        self._records: list[Delta | Prompt] = []
        self._folder = Folder()
        self._publisher = publisher

    def prompt(self, call: int, n_tokens: int) -> None:
        # Sent with the first delta: as long as its log is empty, another worker may start the job.
        self.entered = True
        self.prompt_tokens += n_tokens
        self._records.append(Prompt(call, n_tokens))

    def delta(self, call: int, index: int, token_ids: Sequence[int], text: str) -> None:
        self.completion_tokens += len(token_ids)
        self._records.append(Delta(call, index, token_ids, text))
        self._publisher.mark(self)

    def chunk(self, data: bytes) -> None:
        """Bytes for the client."""
        self._chunks.append(data)
        self._publisher.mark(self)

    def take(self, answer: Answer | None = None) -> Emission | None:
        """Everything unsent, as the next log entry, and the end if there is an answer."""
        if self.dropped:
            return None
        if not (self._chunks or self._records):
            return (
                None if answer is None else make_emission(self.job, self._seq + 1, b"", b"", answer)
            )
        self._seq += 1
        items = self._folder.fold(self._chunks)
        chunks = pack_chunks(items) if items else NO_CHUNKS
        journal = pack_journal(self._records, items)
        self._chunks, self._records = [], []
        return make_emission(self.job, self._seq, chunks, journal, answer)


class _Ending(NamedTuple):
    """A job's answer on its way to Redis."""

    answer: Answer
    verdict: asyncio.Future[str]

    def tell(self, verdict: str) -> None:
        """Once; who waited may have gone."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class _Parcel(NamedTuple):
    """What leaves in one call, and whose it is."""

    emissions: list[Emission]
    senders: list[tuple[Outbox, _Ending | None]]

    @property
    def goes_on(self) -> bool:
        """Another step follows: what Redis says to this one can be read then."""
        return any(ending is None for _, ending in self.senders)


class Publisher:
    """Sends outboxes; `on_lost(job, state)` hears of leases that this worker has lost.

    What `offers` has to tell of the worker's free slots goes with the output.
    """

    def __init__(
        self,
        queue: JobQueue,
        metrics: WorkerMetrics,
        on_lost: Callable[[LeasedJob, str], None],
        offers: Offers | None = None,
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._on_lost = on_lost
        self._offers = offers
        self._unsent: dict[Outbox, _Ending | None] = {}
        self._wake = asyncio.Event()
        self._no_step: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()

    def mark(self, outbox: Outbox) -> None:
        """The outbox has something to send."""
        self._unsent.setdefault(outbox)
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
        ending = _Ending(answer, self._loop.create_future())
        self._unsent[outbox] = ending
        # Others end in the same turn, and leave in the same call.
        self._loop.call_soon(self._flush)
        return await ending.verdict

    def _flush(self) -> None:
        if self._no_step is not None:
            self._no_step.cancel()
            self._no_step = None
        if self._unsent:
            self._wake.set()
            self._queue.read_on()

    async def run(self) -> None:
        """Send whatever there is, one batch at a time; ends by cancellation."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            unsent, self._unsent = self._unsent, {}
            if self._queue.shards == 1:
                await self._send(0, unsent)
                continue
            # A shard keeps its order; shards do not wait for each other.
            shards: dict[int, dict[Outbox, _Ending | None]] = {}
            for outbox, ending in unsent.items():
                shards.setdefault(outbox.job.shard, {})[outbox] = ending
            async with asyncio.TaskGroup() as group:
                for shard, batch in shards.items():
                    group.create_task(self._send(shard, batch))

    async def _send(self, shard: int, batch: dict[Outbox, _Ending | None]) -> None:
        parcel = _Parcel([], [])
        ids: set[str] = set()
        size = 0
        for outbox, ending in batch.items():
            emission = outbox.take(ending and ending.answer)
            if emission is None:
                if ending is not None:
                    ending.tell("dropped")
                continue
            # Long answers must not add up to more than Redis takes in one argument. And a job may
            # be in our hands anew: a reply that names it must be about one of its leases.
            weight = len(ending.answer.body) if ending is not None else 0
            if ids and (size + weight > _CALL_BYTES or emission.job_id in ids):
                await self._call(shard, parcel)
                parcel, ids, size = _Parcel([], []), set(), 0
            parcel.emissions.append(emission)
            parcel.senders.append((outbox, ending))
            ids.add(emission.job_id)
            size += weight
        if ids:
            await self._call(shard, parcel)

    async def _call(self, shard: int, parcel: _Parcel) -> None:
        self._metrics.flushes.inc()
        lost = await self._insist(shard, parcel)
        for outbox, ending in parcel.senders:
            if ending is not None:
                ending.tell("dropped" if lost is None else lost.get(outbox.job.id, "ok"))
            elif lost and outbox.job.id in lost:
                self._on_lost(outbox.job, lost[outbox.job.id])

    async def _insist(self, shard: int, parcel: _Parcel) -> dict[str, str] | None:
        """Repeat the call until Redis takes it: who was lost; None once all are dropped."""
        tries = 0
        while not all(outbox.dropped for outbox, _ in parcel.senders):
            offer = self._offers.news(shard) if self._offers and tries == 0 else None
            try:
                lost = await self._queue.emit(
                    shard, parcel.emissions, offer=offer, patient=parcel.goes_on
                )
                if self._offers and offer:
                    self._offers.said(shard)
                return lost
            except (RedisError, OSError) as error:
                if self._offers and offer:
                    self._offers.said(shard, None)
                if not (isinstance(error, UNAVAILABLE) or unwritable(error)):
                    raise
                if tries == 0:
                    log.warning("Redis does not take tokens: %s", error)
            await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S) - 1)])
            tries += 1
        return None

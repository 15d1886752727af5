"""The publisher: all output of one engine step leaves in one script call per shard.

Runs put what they have to say into their buffer; at the end of the step, when every run has spoken,
one flush gathers it. While a call is on its way, later steps pile up and leave together with the
next one, so a slow Redis makes calls larger, not more.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from shared.platform.backoff import Backoff
from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import UNAVAILABLE, RedisError, unwritable
from shared.platform.tasks import end
from shared.protocol.advertised_slots import SlotUpdate
from shared.protocol.result import JobResult
from shared.protocol.scripts.emit import Fenced, Step, make_step
from shared.protocol.scripts.emit import parse as parse_emit
from shared.protocol.step_log import FLUSH_AFTER, FinalEntry, LogFlush
from shared.queue.job_queue import JobQueue
from worker.claim.advertised_slots import AdvertisedSlots
from worker.claim.lease import Lease
from worker.publish.output_buffer import OutputBuffer

log = logging.getLogger("flotilla.publisher")

# Output that no engine step follows (an error before the first token) leaves after this time.
_NO_STEP_S = 0.005
_RETRY_BASE_S = 0.05
_RETRY_CAP_S = 1.0
_CALL_BYTES = 1 << 20


class _PendingResult(NamedTuple):
    """A job's answer on its way to Redis."""

    answer: JobResult
    verdict: asyncio.Future[str]

    def tell(self, verdict: str) -> None:
        """Once; who waited may have gone."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class _Due:
    """Whose entries have to go into their logs, counted in steps of a shard."""

    def __init__(self) -> None:
        self._steps: deque[list[OutputBuffer]] = deque()

    def step(self, begun: list[OutputBuffer]) -> list[OutputBuffer]:
        """One more step; `begun` keep their first entries since it. Returns whose time has come."""
        self._steps.append(begun)
        return self._steps.popleft() if len(self._steps) == FLUSH_AFTER else []


class _Batch:
    """What leaves in one call: what buffers say, and who waits for the end of which."""

    def __init__(self) -> None:
        self.said: list[tuple[OutputBuffer, bytes, FinalEntry | None]] = []
        self.endings: dict[OutputBuffer, _PendingResult] = {}
        self._log_flushes: list[tuple[OutputBuffer, LogFlush]] = []

    def close(self, due: _Due) -> None:
        """Nothing more is put in, but what has to go into the logs with it."""
        begun = [buffer for buffer, _, _ in self.said if len(buffer.kept) == 1]
        # An attempt's first entry is in the log as soon as a reader may have it (step_log.py).
        first = [buffer for buffer in begun if not buffer.logged]
        later = due.step([buffer for buffer in begun if buffer.logged])
        self._log_flushes = [
            (each, each.log_flush()) for each in (*first, *later) if each.kept and not each.dropped
        ]

    def step(self) -> Step:
        """The call's content."""
        return make_step(self.said, [log_flush for _, log_flush in self._log_flushes])

    def speaks_in(self, fence_token: str) -> bool:
        """Whether all of it may be said in this fencing token."""
        fence_tokens = {buffer.fence_token for buffer, _, _ in self.said}
        fence_tokens.update(buffer.fence_token for buffer, _ in self._log_flushes)
        return bool(fence_token) and fence_tokens <= {fence_token}

    def weed(self, fence_token: str) -> None:
        """Leave out what is not ours any more."""
        said, self.said = self.said, []
        for output in said:
            buffer = output[0]
            if buffer.fence_token != fence_token:  # its run is none any more, so it was not renewed
                buffer.dropped = True
            if not buffer.dropped:
                self.said.append(output)
            elif buffer in self.endings:
                self.endings.pop(buffer).tell("dropped")
        self._log_flushes = [
            part
            for part in self._log_flushes
            if part[0].fence_token == fence_token and not part[0].dropped
        ]

    @property
    def empty(self) -> bool:
        return not self.said and not self._log_flushes


class Publisher:
    """Sends buffers, in the fencing tokens of `lease`.

    What `offers` has to tell of the worker's free slots goes with the output.
    """

    def __init__(
        self,
        queue: JobQueue,
        metrics: WorkerMetrics,
        lease: Lease,
        offers: AdvertisedSlots | None = None,
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._lease = lease
        self._offers = offers
        self._due = [_Due() for _ in range(queue.shards)]
        self._unsent: list[dict[OutputBuffer, _PendingResult | None]] = [
            {} for _ in range(queue.shards)
        ]
        self._busy = [False] * queue.shards  # a shard keeps its order: one call at a time
        self._waiting = [False] * queue.shards  # more is to leave as soon as it is not
        self._ended = False
        self._insisting: set[asyncio.Task[None]] = set()
        self._no_step: asyncio.TimerHandle | None = None
        self._stepping = False  # a step has ended, its flush is to come
        self._loop = asyncio.get_running_loop()
        self._broken: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Raises what must not happen; ends by cancellation, and sends nothing any more then."""
        try:
            await self._broken
        finally:
            self._ended = True
            await end(self._insisting)

    def mark(self, buffer: OutputBuffer) -> None:
        """The buffer has something to send."""
        self._unsent[buffer.job.shard].setdefault(buffer)
        if self._no_step is None and not self._stepping:
            self._no_step = self._loop.call_later(_NO_STEP_S, self._flush)

    def step(self) -> None:
        """The engine has ended a step: the runs it has woken speak first, and whom they wake."""
        self._metrics.steps.inc()
        self._stepping = True
        self._loop.call_soon(self._loop.call_soon, self._flush)

    async def finish(self, buffer: OutputBuffer, answer: JobResult) -> str:
        """Send what is left and end the job.

        Returns 'ok', or the state the job is in for somebody else, or 'dropped'.
        """
        ending = _PendingResult(answer, self._loop.create_future())
        self._unsent[buffer.job.shard][buffer] = ending
        # Others end in the same turn, and leave in the same call.
        self._loop.call_soon(self._flush)
        return await ending.verdict

    def _flush(self) -> None:
        self._stepping = False
        if self._no_step is not None:
            self._no_step.cancel()
            self._no_step = None
        for shard, unsent in enumerate(self._unsent):
            if unsent:
                if self._busy[shard]:
                    self._waiting[shard] = True
                else:
                    self._send(shard)

    def _send(self, shard: int) -> None:
        """Whatever there is, in one call; without a coroutine, as long as nothing is the matter."""
        if self._ended:
            return
        try:
            self._start(shard)
        except Exception as error:
            self._break(error)

    def _start(self, shard: int) -> None:
        batch = self._pack(shard)
        if not batch.said:
            return
        self._busy[shard] = True
        self._metrics.flushes.inc()
        batch.close(self._due[shard])
        fence_token = self._lease.fence_token(shard)
        if not batch.speaks_in(fence_token):
            self._insist_on(shard, batch)
            return
        offer = self._offers.news(shard) if self._offers else None
        reply = self._queue.start_emit(
            shard, self._lease.worker_id, fence_token, batch.step(), offer
        )
        reply.add_done_callback(partial(self._sent, shard, batch, fence_token, offer))

    def _pack(self, shard: int) -> _Batch:
        unsent, self._unsent[shard] = self._unsent[shard], {}
        batch, size = _Batch(), 0
        for buffer, ending in unsent.items():
            if ending is None:
                output = buffer.take()
                if output is not None:
                    batch.said.append(output)
                continue
            # Long answers must not add up to more than Redis takes in one argument.
            size += len(ending.answer.body)
            if size > _CALL_BYTES and batch.said:
                self._unsent[shard][buffer] = ending
                self._waiting[shard] = True
                continue
            output = buffer.take(ending.answer)
            if output is None:
                ending.tell("dropped")
            else:
                batch.said.append(output)
                batch.endings[buffer] = ending
        return batch

    def _sent(
        self,
        shard: int,
        batch: _Batch,
        fence_token: str,
        offer: SlotUpdate | None,
        reply: asyncio.Future[Any],
    ) -> None:
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        if self._offers and offer:
            if error is None and reply.result() is None:
                self._offers.unsaid(shard, offer)
            else:
                self._offers.said(shard, 0 if error is None else None)
        if error is not None:
            self._insist_on(shard, batch, error)
            return
        try:
            self._done(shard, batch, parse_emit(reply.result()))
        except Fenced:
            self._lease.refused(shard, fence_token)
            self._insist_on(shard, batch)
        except Exception as failure:
            self._break(failure)

    def _done(self, shard: int, batch: _Batch, lost: Mapping[str, str]) -> None:
        for buffer, ending in batch.endings.items():
            ending.tell(lost.get(buffer.job.id, "ok"))
        self._busy[shard] = False
        if self._waiting[shard]:
            self._waiting[shard] = False
            self._send(shard)

    def _insist_on(self, shard: int, batch: _Batch, error: BaseException | None = None) -> None:
        if self._ended:
            return
        task = asyncio.create_task(self._insist(shard, batch, error))
        self._insisting.add(task)
        task.add_done_callback(self._insisted)

    def _insisted(self, task: asyncio.Task[None]) -> None:
        self._insisting.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._break(error)

    def _break(self, error: BaseException) -> None:
        if not self._broken.done():
            self._broken.set_exception(error)

    async def _insist(self, shard: int, batch: _Batch, error: BaseException | None) -> None:
        """Repeat the call until Redis takes it or all is dropped; `error` is what it met first."""
        lease, again = self._lease, error is not None
        if error is not None:
            _put_up_with(error)
            log.warning("Redis does not take tokens: %s", error)
        backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
        lost: Mapping[str, str] = {}
        while True:
            try:
                fence_token = lease.fence_token(shard)
                if not batch.speaks_in(fence_token):
                    await lease.renew(shard)
                    fence_token = lease.fence_token(shard)
                if fence_token:  # else Redis was lost again meanwhile
                    batch.weed(fence_token)
                    if not batch.empty:
                        worker, step = lease.worker_id, batch.step()
                        lost = await self._queue.emit(
                            shard, worker, fence_token, step, repeated=again
                        )
                    break
            except Fenced:
                lease.refused(shard, fence_token)
            except (RedisError, OSError) as another:
                _put_up_with(another)
                again = True
            await asyncio.sleep(backoff.next_delay_s())
        self._done(shard, batch, lost)


def _put_up_with(error: BaseException) -> None:
    """Raises what does not go away by itself."""
    if not isinstance(error, UNAVAILABLE) and not unwritable(error):
        raise error

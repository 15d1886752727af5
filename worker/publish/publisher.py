"""The publisher: all output of one engine step leaves in one script call per shard.

Runs put what they have to say into their outbox; at the end of the step, when every run has spoken,
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

from redis.exceptions import NoScriptError

from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import UNAVAILABLE, RedisError, unwritable
from shared.platform.tasks import end
from shared.protocol.result import Answer
from shared.protocol.step_log import DEPOSIT_AFTER, Deposit, End, Step, make_step
from shared.queue.job_queue import Fenced, JobQueue, Offer
from worker.claim.advertised_slots import Offers
from worker.claim.lease import Lease
from worker.publish.output_buffer import Outbox

log = logging.getLogger("flotilla.publisher")

# Output that no engine step follows (an error before the first token) leaves after this time.
_NO_STEP_S = 0.005
_RETRY_S = (0.05, 0.1, 0.2, 0.5, 1.0)
_CALL_BYTES = 1 << 20


class _Ending(NamedTuple):
    """A job's answer on its way to Redis."""

    answer: Answer
    verdict: asyncio.Future[str]

    def tell(self, verdict: str) -> None:
        """Once; who waited may have gone."""
        if not self.verdict.done():
            self.verdict.set_result(verdict)


class _Due:
    """Whose entries have to go into their logs, counted in steps of a shard."""

    def __init__(self) -> None:
        self._steps: deque[list[Outbox]] = deque()

    def step(self, begun: list[Outbox]) -> list[Outbox]:
        """One more step; `begun` keep their first entries since it. Returns whose time has come."""
        self._steps.append(begun)
        return self._steps.popleft() if len(self._steps) == DEPOSIT_AFTER else []


class _Parcel:
    """What leaves in one call: what outboxes say, and who waits for the end of which."""

    def __init__(self) -> None:
        self.said: list[tuple[Outbox, bytes, End | None]] = []
        self.endings: dict[Outbox, _Ending] = {}
        self._deposits: list[tuple[Outbox, Deposit]] = []

    def close(self, due: _Due) -> None:
        """Nothing more is put in, but what has to go into the logs with it."""
        begun = [outbox for outbox, _, _ in self.said if len(outbox.kept) == 1]
        # An attempt's first entry is in the log as soon as a reader may have it (step_log.py).
        first = [outbox for outbox in begun if not outbox.logged]
        later = due.step([outbox for outbox in begun if outbox.logged])
        self._deposits = [
            (each, each.deposit()) for each in (*first, *later) if each.kept and not each.dropped
        ]

    def step(self) -> Step:
        """The call's content."""
        return make_step(self.said, [deposit for _, deposit in self._deposits])

    def speaks_in(self, epoch: str) -> bool:
        """Whether all of it may be said in this epoch."""
        epochs = {outbox.epoch for outbox, _, _ in self.said}
        epochs.update(outbox.epoch for outbox, _ in self._deposits)
        return bool(epoch) and epochs <= {epoch}

    def weed(self, epoch: str) -> None:
        """Leave out what is not ours any more."""
        said, self.said = self.said, []
        for utterance in said:
            outbox = utterance[0]
            if outbox.epoch != epoch:  # its run is none any more, so it was not renewed
                outbox.dropped = True
            if not outbox.dropped:
                self.said.append(utterance)
            elif outbox in self.endings:
                self.endings.pop(outbox).tell("dropped")
        self._deposits = [
            part for part in self._deposits if part[0].epoch == epoch and not part[0].dropped
        ]

    @property
    def empty(self) -> bool:
        return not self.said and not self._deposits


class Publisher:
    """Sends outboxes, in the epochs of `lease`.

    What `offers` has to tell of the worker's free slots goes with the output.
    """

    def __init__(
        self, queue: JobQueue, metrics: WorkerMetrics, lease: Lease, offers: Offers | None = None
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._lease = lease
        self._offers = offers
        self._due = [_Due() for _ in range(queue.shards)]
        self._unsent: list[dict[Outbox, _Ending | None]] = [{} for _ in range(queue.shards)]
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

    def mark(self, outbox: Outbox) -> None:
        """The outbox has something to send."""
        self._unsent[outbox.job.shard].setdefault(outbox)
        if self._no_step is None and not self._stepping:
            self._no_step = self._loop.call_later(_NO_STEP_S, self._flush)

    def step(self) -> None:
        """The engine has ended a step: the runs it has woken speak first, and whom they wake."""
        self._metrics.steps.inc()
        self._stepping = True
        self._loop.call_soon(self._loop.call_soon, self._flush)

    async def finish(self, outbox: Outbox, answer: Answer) -> str:
        """Send what is left and end the job.

        Returns 'ok', or the state the job is in for somebody else, or 'dropped'.
        """
        ending = _Ending(answer, self._loop.create_future())
        self._unsent[outbox.job.shard][outbox] = ending
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
        parcel = self._pack(shard)
        if not parcel.said:
            return
        self._busy[shard] = True
        self._metrics.flushes.inc()
        parcel.close(self._due[shard])
        epoch = self._lease.epoch(shard)
        if not parcel.speaks_in(epoch):
            self._insist_on(shard, parcel)
            return
        offer = self._offers.news(shard) if self._offers else None
        reply = self._queue.start_emit(shard, self._lease.worker_id, epoch, parcel.step(), offer)
        reply.add_done_callback(partial(self._sent, shard, parcel, epoch, offer))

    def _pack(self, shard: int) -> _Parcel:
        unsent, self._unsent[shard] = self._unsent[shard], {}
        parcel, size = _Parcel(), 0
        for outbox, ending in unsent.items():
            if ending is None:
                utterance = outbox.take()
                if utterance is not None:
                    parcel.said.append(utterance)
                continue
            # Long answers must not add up to more than Redis takes in one argument.
            size += len(ending.answer.body)
            if size > _CALL_BYTES and parcel.said:
                self._unsent[shard][outbox] = ending
                self._waiting[shard] = True
                continue
            utterance = outbox.take(ending.answer)
            if utterance is None:
                ending.tell("dropped")
            else:
                parcel.said.append(utterance)
                parcel.endings[outbox] = ending
        return parcel

    def _sent(
        self,
        shard: int,
        parcel: _Parcel,
        epoch: str,
        offer: Offer | None,
        reply: asyncio.Future[Any],
    ) -> None:
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        if self._offers and offer:
            if error is None and reply.result() is None:
                self._offers.unsaid(shard, offer)
            else:
                self._offers.said(shard, 0 if error is None else None)
        if error is not None:
            self._insist_on(shard, parcel, error)
            return
        try:
            self._done(shard, parcel, self._queue.emitted(reply.result()))
        except Fenced:
            self._lease.refused(shard, epoch)
            self._insist_on(shard, parcel)
        except Exception as failure:
            self._break(failure)

    def _done(self, shard: int, parcel: _Parcel, lost: Mapping[str, str]) -> None:
        for outbox, ending in parcel.endings.items():
            ending.tell(lost.get(outbox.job.id, "ok"))
        self._busy[shard] = False
        if self._waiting[shard]:
            self._waiting[shard] = False
            self._send(shard)

    def _insist_on(self, shard: int, parcel: _Parcel, error: BaseException | None = None) -> None:
        if self._ended:
            return
        task = asyncio.create_task(self._insist(shard, parcel, error))
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

    async def _insist(self, shard: int, parcel: _Parcel, error: BaseException | None) -> None:
        """Repeat the call until Redis takes it or all is dropped; `error` is what it met first."""
        lease, again, tries = self._lease, error is not None, 0
        if error is not None:
            _put_up_with(error)
            log.warning("Redis does not take tokens: %s", error)
        lost: Mapping[str, str] = {}
        while True:
            if tries:
                await asyncio.sleep(_RETRY_S[min(tries, len(_RETRY_S)) - 1])
            try:
                epoch = lease.epoch(shard)
                if not parcel.speaks_in(epoch):
                    await lease.renew(shard)
                    epoch = lease.epoch(shard)
                if epoch:  # else Redis was lost again meanwhile
                    parcel.weed(epoch)
                    if not parcel.empty:
                        worker, step = lease.worker_id, parcel.step()
                        lost = await self._queue.emit(shard, worker, epoch, step, again=again)
                    break
            except Fenced:
                lease.refused(shard, epoch)
            except (RedisError, OSError) as another:
                _put_up_with(another)
                again = True
            tries += 1
        self._done(shard, parcel, lost)


def _put_up_with(error: BaseException) -> None:
    """Raises what does not go away by itself."""
    if not isinstance(error, (*UNAVAILABLE, NoScriptError)) and not unwritable(error):
        raise error

"""The publisher sends all output of one engine step in one script call per shard.

Runs put their output into buffers; at the end of the step, when every run has done so, one flush
collects it. While a call is in flight, the output of later steps accumulates and leaves with the
next call: a slow Redis makes calls larger, not more frequent.

Token path: `worker/core/output_buffer.py` -> here -> `scripts/emit.lua` -> pub/sub ->
`gateway/core/relay.py`.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from shared.job.advertised_slots import SlotUpdate
from shared.job.replies import Fenced
from shared.job.result import JobResult
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store.interface import TRANSIENT, Store
from worker.core.emit_batch import DISCARDED, Batch, FlushSchedule, PendingResult
from worker.core.lease import Lease
from worker.core.output_buffer import OutputBuffer
from worker.core.result_pieces import store_pieces
from worker.core.slot_adverts import AdvertisedSlots

log = logging.getLogger("flotilla.publisher")

# Output that no engine step follows (an error before the first token) is sent after this time.
_NO_STEP_S = 0.005
_RETRY_BASE_S = 0.05
_RETRY_CAP_S = 0.25
_CALL_BYTES = 1 << 20
"""Results of more bytes than this are spread over several calls."""


class Publisher:
    """Sends buffered output under the fencing tokens of `lease`.

    Updates of `advertised_slots`, if given, travel with the output.
    """

    def __init__(
        self,
        queue: Store,
        metrics: WorkerMetrics,
        lease: Lease,
        advertised_slots: AdvertisedSlots | None = None,
    ) -> None:
        self._queue = queue
        self._metrics = metrics
        self._lease = lease
        self._advertised_slots = advertised_slots
        self._schedules = [FlushSchedule() for _ in range(queue.shards)]
        self._unsent: list[dict[OutputBuffer, PendingResult | None]] = [
            {} for _ in range(queue.shards)
        ]
        # One call per shard at a time keeps the order.
        self.sending_since: list[float | None] = [None] * queue.shards
        """For each shard, when its call in flight began, on the monotonic clock."""
        self._send_next = [False] * queue.shards  # as soon as the call in flight is done
        self._stopped = False
        self._warn = RareWarning(log)
        self._retries: set[asyncio.Task[None]] = set()
        self._no_step_flush: asyncio.TimerHandle | None = None
        self._flush_scheduled = False
        self._loop = asyncio.get_running_loop()
        self._failure: asyncio.Future[None] = self._loop.create_future()

    async def run(self) -> None:
        """Wait until cancellation, after which nothing is sent; raises errors that are bugs."""
        try:
            await self._failure
        finally:
            self._stopped = True
            await end(self._retries)

    def notify(self, buffer: OutputBuffer) -> None:
        """The buffer has output to send."""
        self._unsent[buffer.job.shard].setdefault(buffer)
        if self._no_step_flush is None and not self._flush_scheduled:
            self._no_step_flush = self._loop.call_later(_NO_STEP_S, self._flush)

    def on_step(self) -> None:
        """The engine has ended a step: flush once all tasks that the step woke have run."""
        self._metrics.steps.inc()
        self._flush_scheduled = True
        self._loop.call_soon(self._loop.call_soon, self._flush)

    async def finish(self, buffer: OutputBuffer, result: JobResult) -> str:
        """Send the remaining output and end the job.

        Returns 'ok', the state that the job had reached before, or `DISCARDED`.
        """
        if not result.inline and result.body:
            await store_pieces(self._queue, buffer, result.body)
        pending = PendingResult(result, self._loop.create_future())
        self._unsent[buffer.job.shard][buffer] = pending
        # Other jobs end in the same turn of the event loop, and leave in the same call.
        self._loop.call_soon(self._flush)
        return await pending.outcome

    def _flush(self) -> None:
        self._flush_scheduled = False
        if self._no_step_flush is not None:
            self._no_step_flush.cancel()
            self._no_step_flush = None
        for shard, unsent in enumerate(self._unsent):
            if unsent:
                if self.sending_since[shard] is not None:
                    self._send_next[shard] = True
                else:
                    self._send(shard)

    def _send(self, shard: int) -> None:
        if self._stopped:
            return
        try:
            self._start_call(shard)
        except Exception as error:
            self._fail(error)

    def _start_call(self, shard: int) -> None:
        """Send all unsent output in one call, without a coroutine as long as nothing fails."""
        batch = self._collect(shard)
        if not batch.outputs:
            return
        self.sending_since[shard] = time.monotonic()
        batch.close(self._schedules[shard])
        fence_token = self._lease.fence_token(shard)
        if not batch.valid_under(fence_token):
            self._start_retry(shard, batch)
            return
        update = self._advertised_slots.pending_update(shard) if self._advertised_slots else None
        reply = self._queue.start_emit(
            shard, self._lease.worker_id, fence_token, batch.step(), update
        )
        reply.add_done_callback(partial(self._on_reply, shard, batch, fence_token, update))

    def _collect(self, shard: int) -> Batch:
        unsent, self._unsent[shard] = self._unsent[shard], {}
        batch, size = Batch(), 0
        for buffer, pending in unsent.items():
            if pending is None:
                output = buffer.take()
                if output is not None:
                    batch.outputs.append(output)
                continue
            # Redis limits the size of one argument, so long results must not add up in one call.
            size += len(pending.result.inline)
            if size > _CALL_BYTES and batch.outputs:
                self._unsent[shard][buffer] = pending
                self._send_next[shard] = True
                continue
            output = buffer.take(pending.result)
            if output is None:
                pending.resolve(DISCARDED)
            else:
                batch.outputs.append(output)
                batch.pending_results[buffer] = pending
        return batch

    def _on_reply(
        self,
        shard: int,
        batch: Batch,
        fence_token: str,
        update: SlotUpdate | None,
        reply: asyncio.Future[Any],
    ) -> None:
        error = asyncio.CancelledError() if reply.cancelled() else reply.exception()
        if self._advertised_slots and update:
            if error is None and reply.result() is None:
                self._advertised_slots.rejected(shard, update)
            else:
                self._advertised_slots.acked(shard, 0 if error is None else None)
        if error is not None:
            self._start_retry(shard, batch, error)
            return
        try:
            self._done(shard, batch, self._queue.parse_emit(reply.result()))
        except Fenced:
            self._lease.invalidate(shard, fence_token)
            self._start_retry(shard, batch)
        except Exception as failure:
            self._fail(failure)

    def _done(self, shard: int, batch: Batch, lost: Mapping[str, str]) -> None:
        """The call was carried out; `lost`: jobs that had ended before, and their states."""
        for buffer, pending in batch.pending_results.items():
            pending.resolve(lost.get(buffer.job.id, "ok"))
        self.sending_since[shard] = None
        if self._send_next[shard]:
            self._send_next[shard] = False
            self._send(shard)

    def _fail(self, error: BaseException) -> None:
        if not self._failure.done():
            self._failure.set_exception(error)

    # --- retries ---

    def _start_retry(self, shard: int, batch: Batch, error: BaseException | None = None) -> None:
        if self._stopped:
            return
        task = asyncio.create_task(self._retry(shard, batch, error))
        self._retries.add(task)
        task.add_done_callback(self._on_retry_done)

    def _on_retry_done(self, task: asyncio.Task[None]) -> None:
        self._retries.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            self._fail(error)

    async def _retry(self, shard: int, batch: Batch, error: BaseException | None) -> None:
        """Repeat the call until Redis accepts it or every job in it is lost.

        `error` is what the first call failed with; None if it was not sent, or refused.
        """
        lease, again = self._lease, error is not None
        if error is not None:
            if not isinstance(error, TRANSIENT):
                raise error
            self._warn("output not sent, trying again: %s", error, shard=shard)
        backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
        lost: Mapping[str, str] = {}
        while True:
            try:
                fence_token = lease.fence_token(shard)
                if not batch.valid_under(fence_token):
                    await lease.renew(shard)
                    fence_token = lease.fence_token(shard)
                if fence_token:  # else the connection was lost again meanwhile
                    batch.drop_stale(fence_token)
                    if not batch.empty:
                        worker, step = lease.worker_id, batch.step()
                        lost = await self._queue.emit(
                            shard, worker, fence_token, step, repeated=again
                        )
                    break
            except Fenced:
                lease.invalidate(shard, fence_token)
            except TRANSIENT:
                again = True
            await asyncio.sleep(backoff.next_delay_s())
        self._done(shard, batch, lost)

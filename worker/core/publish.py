"""Sends the output of all jobs of a worker to Redis: all of one engine step in one call for each
shard.

Runs put their output into `Output`s; at the end of the step, when every run has done so, one call
takes it. While a call is in flight, the output of later steps accumulates and leaves with the next
one: a slow Redis makes calls larger, not more frequent.

One call is in flight for each shard, so what Redis has is known but for that one. Whatever makes a
connection doubtful (a new one, a time-out, a slot that has moved) counts as a lost connection: then
the call is repeated unchanged, with the number of each job's last acknowledged entry, and Redis
tells what it lacks. Nothing below this module may repeat a call by itself.

Token path: `worker/core/output.py` -> here -> `shared/store/queue.py` -> emit.lua -> pub/sub ->
`gateway/core/relay.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

from shared.job.log import EventName, pack_entry
from shared.job.result import PIECE_BYTES, JobResult, n_pieces
from shared.job.states import JobState
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.platform.tasks import run_together
from shared.store.errors import TRANSIENT, until_answered
from shared.store.queue import Emitted, Queue, Step
from worker.core.output import Output

if TYPE_CHECKING:
    from worker.core.jobs import Jobs

log = logging.getLogger("flotilla.publisher")

DISCARDED = "discarded"
"""Outcome of a result that was not sent: its job was aborted."""
REVOKED = "revoked"
"""In place of the state of a job that others have ended, as a message tells."""
_NO_STEP_S = 0.005
"""Output that no engine step follows (an error before the first token) is sent after this time."""
_RETRY_BASE_S, _RETRY_CAP_S = 0.05, 0.25
_CALL_BYTES = 1 << 20
"""Results of more bytes than this are spread over several calls."""

KEPT_S = 10.0
"""So long entries are kept that Redis has acknowledged."""


class _Call(NamedTuple):
    """What is sent in one call, and whose output it is."""

    step: Step
    outputs: dict[Output, None]


class ShardPublisher:
    """What a worker has and sends in one shard."""

    def __init__(self, jobs: Jobs, shard: int) -> None:
        self.outputs: dict[str, Output] = {}
        """Of the jobs that the worker has here as far as it knows, by job id."""
        self.wanted = asyncio.Event()
        """There may be something to send now."""
        self.must_claim = True
        """As of the last end: jobs wait, or the worker's room was not told."""
        self.shard = shard
        self._jobs = jobs
        self._queue = jobs.queue
        self._claim = pack_entry(None, None, (EventName.CLAIMED, jobs.worker_id))
        self._unsent: dict[Output, None] = {}
        self._in_flight: _Call | None = None
        self._kept: deque[tuple[float, Step]] = deque()  # when each was acknowledged
        self._losses = jobs.queue.losses(shard)
        self._repeats = False
        self._version = b""  # of the followers that it knows; empty: none
        self._warn = RareWarning(log)

    def add(self, output: Output) -> None:
        """The worker has claimed this job."""
        before = self.outputs.get(output.id)
        if before is not None:  # it was taken away, and claimed again
            self._lose(before, JobState.QUEUED)
        self.outputs[output.id] = output

    def remove(self, output: Output) -> None:
        """The worker does not have this job any more."""
        if self.outputs.get(output.id) is output:
            del self.outputs[output.id]

    @property
    def blame(self) -> int:
        """The most of a job that has no output yet: it may end this worker, as it may have ended
        others."""
        silent = (each for each in self.outputs.values() if each.first_output_at is None)
        return max((output.job.blame for output in silent), default=0)

    def taken_away(self, job_id: str, generation: int) -> None:
        """Others have taken this job away, as a message tells: its next entry would be refused."""
        output = self.outputs.get(job_id)
        if output is not None and output.job.generation == generation:
            self._lose(output, REVOKED)

    def notify(self, output: Output) -> None:
        """The output has something to send."""
        self._unsent[output] = None

    def disconnected(self) -> None:
        """What was in flight was carried out, or was not, or will be. Redis may have lost writes:
        watchers, too, and it may give the same version again."""
        self._losses = self._queue.losses(self.shard)
        self._repeats, self._version = True, b""

    async def run(self) -> None:
        """Send until cancellation. Raises errors that are bugs."""
        backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
        while True:
            await self.wanted.wait()
            self.wanted.clear()
            try:
                await self.send()
            except TRANSIENT as error:
                self._warn("output not sent, trying again: %s", error, shard=self.shard)
                self.wanted.set()
                await asyncio.sleep(backoff.next_delay_s())
                with contextlib.suppress(*TRANSIENT):
                    await self._queue.connect(self.shard)
            else:
                backoff.reset()

    def flush(self) -> None:
        """Send what there is, as soon as the call in flight is done."""
        if self._unsent or self._losses != self._queue.losses(self.shard):
            self.wanted.set()

    async def send(self) -> None:
        """Send what there is, in one call. Raises StoreError."""
        if self._losses != self._queue.losses(self.shard):
            self.disconnected()
        repeated = self._in_flight
        call = repeated or self._collect()
        if self._repeats:
            self._tell_acknowledged(call)
        if not call.outputs:
            return
        self._in_flight = call
        try:
            reply = await self._queue.emit(
                self.shard, self._jobs.worker_id, self._version, call.step
            )
        except TRANSIENT:
            self.disconnected()
            raise
        self._emitted(call, Queue.parse_emit(reply))
        if repeated or self._in_flight:
            self.wanted.set()

    def _collect(self) -> _Call:
        """What is new."""
        unsent, self._unsent = self._unsent, {}
        call, claim = _Call(Step(), {}), self._claim
        step, outputs = call
        size = 0
        for output in unsent:
            if output.result is not None and not output.has_ended:
                if output.discarded:
                    output.resolve(DISCARDED)
                # Redis limits the size of one argument, so long results must not add up in a call.
                size += len(output.result.inline)
                if size > _CALL_BYTES and outputs:
                    self._unsent[output] = None
                    self.wanted.set()
                    continue
            if output.take(step, claim):
                outputs[output] = None
        if step.ends:
            step.idle = self._jobs.idle_room(self.shard)
        return call

    def _tell_acknowledged(self, call: _Call) -> None:
        """Put into a call up to where Redis has acknowledged each job that the worker has."""
        step, outputs = call
        ended = (end[0] for end in step.ends)
        new = Counter(chain(step.entries[::3], step.restarts[::3], ended))
        step.acknowledged = []
        for output in self.outputs.values():
            number = output.number - (new[output.id] if output in outputs else 0)
            step.acknowledged += (output.id, output.job.generation, number)
        outputs.update(dict.fromkeys(self.outputs.values()))

    def _emitted(self, call: _Call, reply: Emitted) -> None:
        """The call was carried out."""
        step, outputs = call
        refused, short = reply.refused, reply.short
        known = all(job_id in self.outputs for job_id in reply.followers)
        self._version = reply.version if known else b""  # else one is being claimed
        self.must_claim = reply.must_claim
        self._kept.append((time.monotonic(), Step(step.entries, step.restarts)))
        again = _Call(Step(), {})
        for output in outputs:
            if output.id in refused:
                self._lose(output, refused[output.id])
            elif output.id in short:  # Redis has lost entries
                if self._put_again(again.step, output, short[output.id], step.ends):
                    again.outputs[output] = None
                else:
                    self._lose(output, JobState.QUEUED)  # the next claim hands it to others
            elif output.has_ended:
                self.remove(output)
                output.resolve("ok")
        self._repeats, self._in_flight = bool(short), again if again.outputs else None
        while self._kept and self._kept[0][0] < time.monotonic() - KEPT_S:
            self._kept.popleft()
        for job_id, (watchers, watched) in reply.followers.items():
            if (watching := self.outputs.get(job_id)) is not None:
                watching.set_watchers(watchers, watched=watched)

    def _put_again(self, step: Step, output: Output, after: int, ends: Sequence[Any]) -> bool:
        """Put the entries of a job behind this number into a step; False if they are not all kept.
        `ends`: of the latest call."""
        found: list[tuple[list[Any], Any]] = []

        def is_next(job_id: str, entry_id: str) -> bool:
            next_id = f"{output.entry_prefix}{after + len(found) + 1}"
            return job_id == output.id and entry_id == next_id

        for _, kept in self._kept:
            for before, into in ((kept.restarts, step.restarts), (kept.entries, step.entries)):
                for job_id, entry_id, data in zip(*[iter(before)] * 3, strict=True):
                    if is_next(job_id, entry_id):
                        found.append((into, data))
        found += [(step.ends, end) for end in ends if is_next(*end[:2])]
        # A call restarts jobs before it adds entries.
        restarts_late = any(into is step.restarts for into, _ in found[1:])
        if restarts_late or after + len(found) != output.number:
            return False
        for number, (into, data) in enumerate(found, after + 1):
            if into is step.ends:
                into.append(data)
            else:
                output.put(step, into, number, data, self._claim)
        return True

    def _lose(self, output: Output, state: str) -> None:
        self.remove(output)
        if not output.discarded:
            output.discarded = True
            self._jobs.lost(output, state)
        output.resolve(state)


class Publisher:
    """The publishers of all shards."""

    def __init__(self, jobs: Jobs) -> None:
        self.shards = [ShardPublisher(jobs, shard) for shard in range(jobs.queue.shards)]
        self.n_steps = 0
        """Of the engine, so far."""
        self._queue = jobs.queue
        self._metrics = jobs.metrics
        self._loop = asyncio.get_running_loop()
        self._no_step: asyncio.TimerHandle | None = None
        self._flush_is_due = False

    async def run(self) -> None:
        """Send until cancellation. Raises errors that are bugs."""
        await run_together(*(each.run() for each in self.shards))

    def outputs(self) -> list[Output]:
        """Those of all jobs that the worker has."""
        return [output for shard in self.shards for output in shard.outputs.values()]

    def of(self, output: Output) -> ShardPublisher:
        """That of the job's shard."""
        return self.shards[output.shard]

    def notify(self, output: Output) -> None:
        """The output has something to send."""
        self.shards[output.shard].notify(output)
        if self._no_step is None and not self._flush_is_due:
            self._no_step = self._loop.call_later(_NO_STEP_S, self._flush)

    def on_step(self) -> None:
        """The engine has ended a step: send once all tasks that the step woke have run."""
        self.n_steps += 1
        self._metrics.steps.inc()
        self._flush_is_due = True
        self._loop.call_soon(self._flush)

    async def finish(self, output: Output, result: JobResult) -> str:
        """Send the remaining output and end the job.

        Returns 'ok', the state that the job had reached before, or `DISCARDED`.
        """
        if not result.inline and result.body:
            await self._store_pieces(output, result.body)
        if output.discarded:
            return DISCARDED
        output.result, output.outcome = result, self._loop.create_future()
        self.of(output).notify(output)
        # Other jobs end in the same turn of the event loop, and leave in the same call.
        self._loop.call_soon(self._flush)
        return await output.outcome

    def _flush(self) -> None:
        self._flush_is_due = False
        if self._no_step is not None:
            self._no_step.cancel()
            self._no_step = None
        for shard in self.shards:
            shard.flush()

    async def _store_pieces(self, output: Output, body: bytes) -> None:
        """Store an answer that is too long to be sent with the end of its job: one call with all of
        it would hold up Redis, the worker, and the output of all other jobs.

        Returns early if the worker has lost the job; the end of the job finds out why.
        """
        for number in range(n_pieces(len(body))):
            piece = body[number * PIECE_BYTES : (number + 1) * PIECE_BYTES]
            is_stored = await until_answered(
                partial(self._queue.store_piece, output.job, number, piece),
                "an answer was not stored",
                is_wanted=lambda: not output.discarded,
            )
            if not is_stored:
                return

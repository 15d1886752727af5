"""The worker's loop: claim jobs, start them on the engine, publish their output, finish them.

Request path: `worker/core/claim.py` -> here -> `worker/core/job_run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from shared.api.operator_actions import OperatorAction
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.job import shard_in
from shared.platform import logs
from shared.platform.malformed import MalformedValues
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import run_together
from shared.store.queue import Control, HeldJob, parse_control
from worker.core.claim import Charges, Claims, Room
from worker.core.engine_call import operate
from worker.core.engine_steps import EngineProgress
from worker.core.hand_over import HandOver
from worker.core.home_shards import HomeShards
from worker.core.job_run import JobRun, Outcome
from worker.core.membership import Membership
from worker.core.publish import Publisher
from worker.core.runs import Runs
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.worker")

_ENGINE_S = 2.0
"""Time for claims in flight, and for the engine to end requests, before jobs are given back."""
_WITHDRAW_S = 1.0
_REMEMBERED_CALLS = 256


class ControlChannel:
    """Handles what a worker is told on its control channel, by all of its shards' servers.

    All but operator calls are hints: a message that is lost costs a second at most, until the next
    claim.
    """

    def __init__(
        self,
        publisher: Publisher,
        claims: Sequence[Claims],
        room: Room,
        hand_over: HandOver,
        malformed: MalformedValues,
    ) -> None:
        """`claims`: of each shard."""
        self.operator_calls: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()
        """Id, action and options of each operator call."""
        self._received: deque[str] = deque(maxlen=_REMEMBERED_CALLS)
        self._publisher = publisher
        self._claims = claims
        self._room = room
        self._hand_over = hand_over
        self._malformed = malformed
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, shards: Sequence[int], message: bytes) -> None:
        """Handle a message of the server of these shards; a malformed one is skipped, counted."""
        try:
            kind, arguments = parse_control(message)
            match kind:
                case Control.CLAIM:
                    for shard in shards:
                        self._claims[shard].wake(int(arguments[0]))
                case Control.YIELD:
                    for shard in shards:
                        self._make_room(shard, int(arguments[0]))
                case Control.LOST:
                    for name, generation in zip(arguments[::2], arguments[1::2], strict=True):
                        job_id = name.decode()
                        publisher = self._publisher.shards[shard_in(job_id)]
                        publisher.taken_away(job_id, int(generation))
                case Control.OPERATE:
                    call = arguments[0].decode(), arguments[1].decode(), arguments[2]
                    if call[0] not in self._received:  # it is repeated until it is answered
                        self._received.append(call[0])
                        self.operator_calls.put_nowait(call)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self._malformed.skip("control message", f"{len(message)} bytes", error)

    def _make_room(self, shard: int, count: int) -> None:
        making_room = self._hand_over.make_room(self._claims[shard], self._room, shard, count)
        task = asyncio.create_task(making_room)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class WorkerLoop:
    """Runs the jobs of a pool on one engine.

    Above `kv_high_watermark` (0 to 1) of the KV cache nothing is claimed.
    """

    def __init__(
        self,
        member: Membership,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        kv_high_watermark: float,
    ) -> None:
        queue = member.queue
        self._member = member
        self._engine = engine
        self._metrics = metrics
        self.engine_lost = asyncio.Event()
        """A run has ended because the engine is dead."""
        self.runs = Runs(metrics)
        self.publisher = Publisher(queue, member.worker_id, metrics, self.runs.lost)
        self.hand_over = HandOver(member, self.publisher, self.runs.give_up)
        self._charges = Charges(queue.share_rules)
        self.room = Room(engine, kv_high_watermark, self._charges)
        self.progress = EngineProgress(engine, self.runs, self.room)
        self._homes = HomeShards(member)
        self._claims = [
            Claims(member, number, self.room, self._charges, self._homes, publisher, self._start)
            for number, publisher in enumerate(self.publisher.shards)
        ]
        self.control = ControlChannel(
            self.publisher,
            self._claims,
            self.room,
            self.hand_over,
            MalformedValues(metrics.malformed),
        )
        engine.on_step = self._on_step
        _export_load(engine, metrics)

    async def run(self) -> None:
        """Claim until cancellation: without room, too, as Redis compares what the worker has."""
        await run_together(
            self._homes.run(self.claim_again), *(claims.run() for claims in self._claims)
        )

    @property
    def sequences(self) -> int:
        """All sequences in the engine."""
        return self._engine.load().unfinished

    # --- one job ---

    def _start(self, job: HeldJob) -> None:
        self._metrics.queue_wait.observe(job.waited_s)
        if job.known_blocks is not None:
            self._metrics.placed.labels(str(job.known_blocks)).inc()
        if job.attempt > 1:
            self._metrics.retried.inc()
        previous = self.runs.get(job.id)
        run = JobRun(job, self._engine, self.publisher, self._metrics, self._member.queue)
        self.publisher.of(run.output).add(run.output)
        self.progress.begins(run)
        self.runs[job.id] = run
        self.room.started(run.output)
        self._charges.started(run.output)
        run.task = task = asyncio.create_task(self._execute(run, previous), name=run.job.id)
        self.runs.tasks.add(task)
        task.add_done_callback(self.runs.tasks.discard)

    async def _execute(self, run: JobRun, previous: JobRun | None) -> None:
        logs.bind_contextvars(**run.job.log_fields)
        log.debug("claimed %.3f s after submit", run.job.waited_s)
        if previous is not None and previous.task is not None:
            # Both have the same request id in the engine, which must have ended the first.
            await asyncio.wait({previous.task})
        try:
            outcome = await run.execute()
        except Exception:
            log.exception("run failed")
            outcome = Outcome.LOST
            await self.hand_over.give_back([run.output], "requeued", "run_failed")
        self._finish(run, outcome)
        if run.trace is not None:
            run.trace.write(run.output, self._member.worker_id)

    def _finish(self, run: JobRun, outcome: Outcome) -> None:
        ending = run.final_state or ("engine_died" if self._engine.dead else outcome.value)
        log.debug("the run has ended: %s", ending)
        if run.trace is not None:
            run.trace.ended(ending, run.error_code)
        if outcome is Outcome.LOST and not run.released:
            self.publisher.of(run.output).remove(run.output)
        elif outcome is Outcome.RELEASE and not run.released:
            if self._engine.dead:
                self.engine_lost.set()
        elif outcome is Outcome.FINISHED and not run.released:
            self._metrics.finished.of(run.final_state, run.error_code).inc()
            self._metrics.prompt_tokens.inc(run.output.prompt_tokens)
            self._metrics.completion_tokens.inc(run.output.completion_tokens)
        released = run.released or outcome is Outcome.RELEASE
        self.progress.ended(run)
        self._charges.ended(run.job.shard, run.output, is_over=not released)
        self.runs.remove(run, released=released)
        self._room_is_free(run.job.shard if outcome is Outcome.FINISHED else None)

    def _room_is_free(self, told: int | None = None) -> None:
        """Claim, if the end of a job in the shard `told` has not told all that a claim would."""
        for shard in self._homes.shards:
            if shard != told or self.publisher.shards[shard].must_claim:
                self._claims[shard].wake()

    def _on_step(self) -> None:
        self.progress.on_step()
        self.publisher.on_step()

    # --- operators, and the end ---

    async def pause(self, reason: str) -> None:
        """Claim nothing until `resume`; running jobs go on."""
        self.room.paused = reason
        for claims in self._claims:
            await claims.settled.wait()

    async def claim_again(self) -> None:
        """Claim now, if there is room."""
        self._room_is_free()

    async def operate(self, action: OperatorAction, options: Mapping[str, Any]) -> WorkerAnswer:
        """Have the engine do what an operator asks for. However long it takes, it does not hang."""
        with self.progress.operator_call():
            return await operate(self._engine, action, options)

    async def withdraw(self) -> None:
        """Tell that there is no room any more. If Redis does not answer, for a second."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WITHDRAW_S):
                for claims in self._claims:
                    await claims.withdraw()

    def drain(self) -> None:
        """Get no more jobs."""
        self.room.draining = True
        self._homes.stop()

    async def give_back_all(self, reason: str, *, blame: bool) -> None:
        """Abort all jobs and give them back. `blame` counts the attempt against each that has
        begun."""
        with contextlib.suppress(TimeoutError):  # a claim in flight brings jobs
            async with asyncio.timeout(_ENGINE_S):
                for claims in self._claims:
                    await claims.settled.wait()
        for run in self.runs.values():
            if run.trace is not None:
                run.trace.released(reason)
            run.abort(release=True)
        if self.runs.tasks:
            await asyncio.wait(set(self.runs.tasks), timeout=_ENGINE_S)
        left = self.publisher.outputs()
        blamed = [output for output in left if blame and output.has_begun]
        others = [output for output in left if not (blame and output.has_begun)]
        await self.hand_over.give_back(blamed, "requeued", reason)
        await self.hand_over.give_back(others, "handed_over", reason)


def _export_load(engine: Engine, metrics: WorkerMetrics) -> None:
    """Compute the engine's load at each scrape: between two claims nothing else updates it."""
    slots = engine.capacity.max_num_seqs
    metrics.slots.labels("busy").set_function(lambda: engine.load().unfinished)
    metrics.slots.labels("free").set_function(lambda: max(0, slots - engine.load().unfinished))
    metrics.kv_usage.set_function(lambda: engine.load().kv_usage)

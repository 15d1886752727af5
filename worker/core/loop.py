"""The worker's loop: claim jobs, start them on the engine, publish their output, finish them.

Request path: `worker/core/claimer.py`, or `worker/core/control_channel.py` -> here ->
`worker/core/job_run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any

from shared.api.operator_actions import OperatorAction
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.job import LeasedJob
from shared.platform import logs
from shared.platform.malformed import MalformedValues
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import run_together
from shared.store.interface import StoreError
from shared.store.redis.claim_connection import ClaimConnection
from worker.core import stalls
from worker.core.adapter_claims import AdapterQueues
from worker.core.charges import Charges
from worker.core.claimer import Claimer
from worker.core.control_channel import ControlChannel
from worker.core.engine_call import operate
from worker.core.engine_steps import EngineProgress
from worker.core.hand_backs import HandBacks
from worker.core.home_shards import HomeShards
from worker.core.isolation import Isolation
from worker.core.job_run import JobRun, Outcome
from worker.core.lease import Lease
from worker.core.membership import Membership
from worker.core.plugin import AroundRuns
from worker.core.publisher import Publisher
from worker.core.queue_consumer import QueueConsumer
from worker.core.releases import Releases
from worker.core.runs import Runs
from worker.core.slot_adverts import AdvertisedSlots
from worker.core.slots import SlotAccounting
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.worker")

_IN_FLIGHT_S = 0.05
_IN_FLIGHT_CHECKS = 20


class WorkerLoop:
    """Runs the jobs of a pool on one engine.

    Above `kv_high_watermark` (0 to 1) of the KV cache nothing is claimed. `around`: see
    `AroundRuns`.
    """

    def __init__(
        self,
        member: Membership,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        kv_high_watermark: float,
        around: AroundRuns | None = None,
    ) -> None:
        queue = member.queue
        self._member = member
        self._engine = engine
        self._metrics = metrics
        self._around = around
        self.engine_lost = asyncio.Event()
        """A run has ended because the engine is dead."""
        self.runs = Runs(metrics)
        self.releases = Releases(queue, self.runs)
        self.charges = Charges(member.pool, self.runs, queue.share_rules)
        self.slots = SlotAccounting(engine, self.runs, self.charges, kv_high_watermark)
        self.progress = EngineProgress(engine, self.runs, self.slots)
        self.adapter_queues = AdapterQueues(
            queue, member.pool, engine.capacity.max_loras, self.runs
        )
        self.homes = HomeShards(member)
        self.advertised_slots = AdvertisedSlots(member, self._assignable, self.homes)
        self.lease = Lease(member, self.runs.buffers, self.runs.lease_lost, self.charges.take)
        self.publisher = Publisher(queue, metrics, self.lease, self.advertised_slots)
        hand_backs = HandBacks(member, self.runs, self.slots, self.releases, self.charges)
        self.control = ControlChannel(
            member,
            self.advertised_slots,
            self.runs,
            self._start,
            hand_backs.look_at,
            MalformedValues(metrics.malformed),
        )
        self._isolation = Isolation(
            member, self.advertised_slots, self.slots, self.runs, self._start_suspect
        )
        self._consumers = [self._consumer(shards) for shards in queue.servers.groups]
        self._claimers = [
            Claimer(each, self.slots, self.homes, hand_backs, len(self._consumers), self._start)
            for each in self._consumers
        ]
        engine.on_step = self._on_step
        _export_load(engine, metrics)

    def _consumer(self, shards: range) -> QueueConsumer:
        queue, pool, worker_id, lease_s = self._member
        return QueueConsumer(
            ClaimConnection(queue, shards, worker_id, lease_s, self.charges),
            pool,
            self.advertised_slots,
            self.adapter_queues,
            self._isolation.suspects_found,
            self.slots.overcommitted,
        )

    async def run(self) -> None:
        """Claim until `drain` or cancellation."""
        try:
            await run_together(
                self.homes.run(self._claim_again),
                self._isolation.run(),
                *(claimer.run() for claimer in self._claimers),
            )
        finally:
            self.control.stop()
            self.advertised_slots.stop()
            queue, pool, worker_id, lease_s = self._member
            with contextlib.suppress(StoreError):
                await queue.withdraw_slots(pool, worker_id, lease_s)

    @property
    def sequences(self) -> int:
        """All sequences in the engine."""
        return self._engine.load().unfinished

    def stall(self) -> str | None:
        """Which part stands still although Redis answers, in words; None if all go on."""
        return stalls.reason(
            time.monotonic(),
            [claimer.turn_began for claimer in self._claimers],
            self.publisher.sending_since,
            self.lease.renewed_at,
        )

    # --- one job ---

    def _start(self, job: LeasedJob) -> None:
        self._metrics.queue_wait.observe(job.waited_s)
        if job.known_blocks is not None:
            self._metrics.placed.labels(str(job.known_blocks)).inc()
        if job.generation > 1:
            self._metrics.retried.inc()
        previous = self.runs.get(job.id)
        if previous is not None:
            previous.abort()  # taken from this worker, and leased to it again since
        queue = self._member.queue
        run = JobRun(job, self._engine, self.publisher, self._metrics, queue, self._around)
        self.progress.begins(run)
        self.runs[job.id] = run
        self.slots.add(run)
        self.charges.started(job)
        run.task = task = asyncio.create_task(self._execute(run, previous), name=run.job.id)
        self.runs.tasks.add(task)
        task.add_done_callback(self.runs.tasks.discard)

    def _start_suspect(self, job: LeasedJob) -> None:
        self._metrics.suspects.inc()
        self._start(job)

    async def _execute(self, run: JobRun, previous: JobRun | None) -> None:
        logs.bind_contextvars(**run.job.log_fields)
        log.debug("leased %.3f s after submit", run.job.waited_s)
        if previous is not None and previous.task is not None:
            # Both have the same request id in the engine, which must have ended the first.
            await asyncio.wait({previous.task})
        try:
            outcome = await run.execute()
        except Exception:
            log.exception("run failed")
            outcome = Outcome.LOST
            await self.releases.failed(run)
        self._finish(run, outcome)
        if run.trace is not None:
            run.trace.write(run.buffer, self._member.worker_id)

    def _finish(self, run: JobRun, outcome: Outcome) -> None:
        ending = run.final_state or ("engine_died" if self._engine.dead else outcome.value)
        log.debug("the run has ended: %s", ending)
        if run.trace is not None:
            run.trace.ended(ending, run.error_code)
        if outcome is Outcome.RELEASE and not run.released:
            self.runs.unreleased.append(run)
            if self._engine.dead:
                self.engine_lost.set()
        elif outcome is Outcome.FINISHED and not run.released:
            self._metrics.finished.of(run.final_state, run.error_code).inc()
            self._metrics.prompt_tokens.inc(run.buffer.prompt_tokens)
            self._metrics.completion_tokens.inc(run.buffer.completion_tokens)
        released = run.released or outcome is Outcome.RELEASE
        self.progress.ended(run)
        self.charges.ended(run, released=released)
        self.runs.remove(run, released=released)
        self.slots.changed()

    def _on_step(self) -> None:
        self.progress.on_step()
        self.publisher.on_step()

    def _assignable(self) -> int:
        """The free slots to advertise."""
        return 0 if self.adapter_queues.names else self.slots.free()

    # --- operators, and the end ---

    async def pause(self, reason: str) -> None:
        """Claim nothing until `resume`; running jobs go on. Raises StoreError."""
        self.slots.paused = reason
        for _ in range(_IN_FLIGHT_CHECKS):
            if not await self._isolation.withdraw():
                return
            await asyncio.sleep(_IN_FLIGHT_S)  # jobs that were assigned before are on their way

    def resume(self) -> None:
        """Claim again."""
        self.slots.paused = ""
        self.slots.changed()

    async def operate(self, action: OperatorAction, options: Mapping[str, Any]) -> WorkerAnswer:
        """Have the engine do what an operator asks for. However long it takes, it does not hang."""
        with self.progress.operator_call():
            return await operate(self._engine, action, options)

    async def read_adapter_queues(self, names: Iterable[str]) -> None:
        """Claim from these adapter queues, too, and from no others. Raises StoreError."""
        if self.adapter_queues.set_names(names):
            await self._claim_again()
            self.slots.changed()

    async def _claim_again(self) -> None:
        """End the waits for wake-ups: each claim advertises anew, too. Raises StoreError."""
        for consumer in self._consumers:
            await consumer.wake()

    def drain(self) -> None:
        """Claim nothing more."""
        self.slots.draining = True
        self._isolation.stop()
        self.homes.stop()
        for claimer in self._claimers:
            claimer.stop()


def _export_load(engine: Engine, metrics: WorkerMetrics) -> None:
    """Compute the engine's load at each scrape: between two claims nothing else updates it."""
    slots = engine.capacity.max_num_seqs
    metrics.slots.labels("busy").set_function(lambda: engine.load().unfinished)
    metrics.slots.labels("free").set_function(lambda: max(0, slots - engine.load().unfinished))
    metrics.kv_usage.set_function(lambda: engine.load().kv_usage)

"""The executor claims, starts, aborts and releases the jobs that one engine runs.

Request path: `worker/core/claimer.py`, or `worker/core/control_channel.py` -> here ->
`worker/core/job_run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence

from shared.job.job import LeasedJob
from shared.job.states import JobState
from shared.platform import logs
from shared.platform.malformed import MalformedValues
from shared.platform.metrics import WorkerMetrics
from shared.store.interface import StoreError
from shared.store.redis.claim_connection import ClaimConnection
from shared.store.redis.job_queue import JobQueue
from worker.core import stalls
from worker.core.adapter_claims import AdapterQueues
from worker.core.claim_policy import ClaimDecision
from worker.core.claimer import Claimer
from worker.core.control_channel import ControlChannel
from worker.core.engine_steps import SHORTEST_S, EngineSteps, stall_limit_s
from worker.core.isolation import Isolation
from worker.core.job_run import JobRun, Outcome
from worker.core.lease import Lease
from worker.core.plugin import AroundRuns
from worker.core.publisher import Publisher
from worker.core.queue_consumer import QueueConsumer
from worker.core.run_trace import REVOKED
from worker.core.slot_adverts import AdvertisedSlots
from worker.core.slots import SlotAccounting
from worker.core.totals import WorkTotals
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.executor")

_IN_FLIGHT_S = 0.05
_IN_FLIGHT_CHECKS = 20
_ENTERING_S = 1.0
"""A job that began so long after the last step is not in the one that hangs."""


class Executor:
    """Claims jobs of one pool for one engine and runs them. `runs` holds them, by job id.

    `lease_s` is the length of a lease. Above `kv_high_watermark` (0 to 1) of the KV cache nothing
    is claimed. `around`: see `AroundRuns`.
    """

    def __init__(
        self,
        queue: JobQueue,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        pool: str,
        worker_id: str,
        lease_s: float,
        kv_high_watermark: float,
        around: AroundRuns | None = None,
    ) -> None:
        self._queue = queue
        self._engine = engine
        self._around = around
        self._metrics = metrics
        self._pool = pool
        self._worker_id = worker_id
        self._lease_s = lease_s
        self.runs: dict[str, JobRun] = {}
        self._to_release: list[JobRun] = []
        self._released: set[JobRun] = set()  # those that their engine has not aborted yet
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self.engine_lost = asyncio.Event()  # a run has ended because the engine is dead
        self.totals = WorkTotals()
        self.slots = SlotAccounting(engine, self.runs, kv_high_watermark)
        self.adapter_queues = AdapterQueues(
            queue, pool, engine.capacity.max_loras, lambda: self.runs
        )
        self.advertised_slots = AdvertisedSlots(
            lambda: 0 if self.adapter_queues.names else self.slots.free(),
            pool=pool,
            worker=worker_id,
            lease_s=lease_s,
            shards=queue.shards,
        )
        self.lease = Lease(
            queue,
            worker_id,
            lease_s,
            lambda: [run.buffer for run in self.runs.values()],
            self.on_lease_lost,
        )
        self.publisher = Publisher(queue, metrics, self.lease, self.advertised_slots)
        self.control = self._control_channel()
        self.isolation = self.slots.isolation = self._isolation()
        self._consumers = [self._consumer(server) for server in range(len(queue.servers))]
        self._claimers = [
            Claimer(consumer, self._decide, self._start) for consumer in self._consumers
        ]
        self._steps = EngineSteps(time.monotonic())
        self._answered_tokens = 0
        engine.on_step = self._on_step
        _export_load(engine, metrics)

    def _control_channel(self) -> ControlChannel:
        return ControlChannel(
            self._queue,
            self.advertised_slots,
            pool=self._pool,
            worker_id=self._worker_id,
            start=self._start,
            abort=self._abort,
            known_jobs=lambda: [*self.runs, *(run.job.id for run in self._to_release)],
            malformed=MalformedValues(self._metrics.malformed),
        )

    def _isolation(self) -> Isolation:
        return Isolation(
            self._queue,
            self.advertised_slots,
            pool=self._pool,
            worker=self._worker_id,
            lease_s=self._lease_s,
            start=self._start_suspect,
            runs=lambda: {job_id: run.buffer.log_started for job_id, run in self.runs.items()},
            claiming=lambda: sum(claimer.requested for claimer in self._claimers),
            usable=lambda: not (self._engine.dead or self.slots.paused),
            on_end=self._slots_changed,
        )

    def _consumer(self, server: int) -> QueueConsumer:
        return QueueConsumer(
            ClaimConnection(self._queue, server, worker=self._worker_id, lease_s=self._lease_s),
            pool=self._pool,
            advertised_slots=self.advertised_slots,
            adapter_queues=self.adapter_queues,
            on_suspects=self.isolation.suspects_found,
        )

    async def run(self) -> None:
        """Claim until `drain` or cancellation."""
        try:
            await asyncio.gather(
                self.isolation.run(), *(claimer.run() for claimer in self._claimers)
            )
        finally:
            self.control.stop()
            self.advertised_slots.stop()
            with contextlib.suppress(StoreError):
                await self._queue.withdraw_slots(self._pool, self._worker_id, self._lease_s)

    @property
    def decision(self) -> ClaimDecision:
        """What may be claimed now, and why. Safe to call from another thread."""
        return self.slots.decide()

    def _decide(self) -> ClaimDecision:
        """For one claimer: it leaves slots for the claims in flight and for the other claimers."""
        requested = sum(claimer.requested for claimer in self._claimers)
        return self.slots.decide(requested, len(self._claimers))

    # --- one job ---

    def _start(self, job: LeasedJob) -> None:
        self._metrics.queue_wait.observe(job.waited_s)
        if job.generation > 1:
            self._metrics.retried.inc()
        previous = self.runs.get(job.id)
        if previous is not None:
            previous.abort()  # taken from this worker, and leased to it again since
        run = JobRun(job, self._engine, self.publisher, self._metrics, self._queue, self._around)
        self.runs[job.id] = run
        self.slots.add(run)
        run.task = task = asyncio.create_task(self._execute(run, previous), name=run.job.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _start_suspect(self, job: LeasedJob) -> None:
        self._metrics.suspects.inc()
        self._start(job)

    def _abort(self, job_id: str) -> None:
        run = self.runs.get(job_id)
        if run is not None:
            if run.trace is not None:
                run.trace.lease_lost(REVOKED)
            run.abort()

    async def _execute(self, run: JobRun, previous: JobRun | None) -> None:
        logs.bind_contextvars(**run.job.log_fields)
        log.debug("leased %.3f s after submit", run.job.waited_s)
        if previous is not None and previous.task is not None:
            # The engine knows both by the same request id, and must have ended the first.
            await asyncio.wait({previous.task})
        try:
            outcome = await run.execute()
        except Exception:
            log.exception("run failed")
            outcome = Outcome.LOST
            await self._release(run, "run_failed")
        self.totals.add_output(run)
        self._answered(run)
        ending = run.final_state or ("engine_died" if self._engine.dead else outcome.value)
        log.debug("the run has ended: %s", ending)
        if run.trace is not None:
            run.trace.ended(ending, run.error_code)
        if run in self._released:
            self._released.discard(run)
        elif outcome is Outcome.RELEASE:
            self._to_release.append(run)
            if self._engine.dead:
                self.engine_lost.set()
        else:
            self.totals.add(run)
            if outcome is Outcome.FINISHED:
                self._count(run)
        # The same job may be in `runs` again, under a newer lease.
        if self.runs.get(run.job.id) is run:
            del self.runs[run.job.id]
        self._slots_changed()
        if run.trace is not None:
            await run.trace.write(run.buffer, self._worker_id, self._queue)

    def _slots_changed(self) -> None:
        self._changed.set()
        for claimer in self._claimers:
            claimer.slots_changed()

    async def _release(self, run: JobRun, reason: str) -> None:
        """Release one job at once, while its last entries are still in the step log."""
        _note_release([run], reason)
        run.abort()
        self._metrics.released.labels(reason).inc()
        with contextlib.suppress(StoreError):  # then its lease expires
            states = await self._queue.release([run.job], reason, blame=True)
            for state in states.values():
                log.warning("job released (%s), it is %s now", reason, state)

    def _count(self, run: JobRun) -> None:
        self._metrics.finished.of(run.final_state, run.error_code).inc()
        self._metrics.prompt_tokens.inc(run.buffer.prompt_tokens)
        self._metrics.completion_tokens.inc(run.buffer.completion_tokens)

    def on_lease_lost(self, job: LeasedJob, state: str) -> None:
        """Abort a job whose lease is not this worker's any more; `state` is the job's state now."""
        run = self.runs.get(job.id)
        # The same job may be in `runs` again, under a newer lease.
        if run is None or run.buffer.discarded or run.job.lease_id != job.lease_id:
            return
        if run.final_state == state:  # ended by this worker; the reply is on its way
            return
        if run.trace is not None:
            run.trace.lease_lost(state)
        self._metrics.fenced.labels(state).inc()
        # Clients cancel all the time; a job that another worker has taken is worth a warning.
        ended_by_client = state in {JobState.CANCELLED, JobState.EXPIRED}
        level = logging.DEBUG if ended_by_client else logging.WARNING
        log.log(
            level,
            "lease lost, run aborted: the job is %s",
            state,
            extra=job.log_fields,
        )
        run.abort()

    # --- the engine ---

    def progressing(self, most_s: float) -> bool:
        """Whether the engine is idle or makes steps; `most_s`: see `stall_limit_s`."""
        steps = self._steps
        steps.look(time.monotonic(), idle=self._engine.load().unfinished == 0)
        if steps.stalled_s < min(SHORTEST_S, most_s):
            return True
        return steps.stalled_s < self._stall_limit_s(most_s)

    def _stall_limit_s(self, most_s: float) -> float:
        in_step = self._steps.last + _ENTERING_S
        waiting = [
            run.buffer.prompt_tokens
            for run in self.runs.values()
            if run.buffer.first_output_at is None and run.started < in_step
        ]
        for run in self.runs.values():
            self._answered(run)
        return stall_limit_s(
            most_s,
            n_steps=self._steps.n,
            longest_s=self._steps.longest_s,
            prompt_tokens=max(waiting, default=0),
            answered_tokens=self._answered_tokens,
            paused=bool(self.slots.paused),
        )

    def _answered(self, run: JobRun) -> None:
        if run.buffer.first_output_at is not None:
            self._answered_tokens = max(self._answered_tokens, run.buffer.prompt_tokens)

    def _on_step(self) -> None:
        self._steps.step(time.monotonic())
        self.publisher.on_step()

    def stall(self) -> str | None:
        """Which loop stands still although Redis answers, in words; None if all go on."""
        return stalls.reason(
            time.monotonic(),
            [claimer.turn_began for claimer in self._claimers],
            self.publisher.sending_since,
            self.lease.renewed_at,
        )

    # --- operators ---

    async def pause(self, reason: str) -> None:
        """Claim nothing until `resume`; running jobs go on. Raises StoreError."""
        self.slots.paused = reason
        for _ in range(_IN_FLIGHT_CHECKS):
            if not await self.isolation.withdraw():
                return
            await asyncio.sleep(_IN_FLIGHT_S)  # jobs that were assigned before are on their way

    def resume(self) -> None:
        """Claim again."""
        self.slots.paused = ""
        self._slots_changed()

    async def read_adapter_queues(self, names: Iterable[str]) -> None:
        """Claim from these adapter queues, too, and from no others. Raises StoreError."""
        if self.adapter_queues.set_names(names):
            for consumer in self._consumers:
                await consumer.wake()
            self._slots_changed()

    # --- shutdown ---

    def drain(self) -> None:
        """Claim nothing more."""
        self.slots.draining = True
        self.isolation.stop()
        for claimer in self._claimers:
            claimer.stop()
        self._changed.set()

    async def wait_until_empty(self, deadline_s: float) -> bool:
        """Wait until no job is left; False if the deadline came first."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.runs:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    @property
    def sequences(self) -> int:
        """All sequences in the engine."""
        return self._engine.load().unfinished

    async def release(self, runs: Sequence[JobRun], reason: str) -> dict[str, str]:
        """Abort some runs and release their jobs at once, without blame.

        Returns the jobs' new states by id. Raises StoreError; the jobs wait for `release_all`
        then.
        """
        _note_release(runs, reason)
        for run in runs:
            del self.runs[run.job.id]
            self._released.add(run)
            run.abort(release=True)
        if not runs:
            return {}
        try:
            # Sent behind all output that was, so the jobs' logs are complete.
            states = await self._queue.release([run.job for run in runs], reason, blame=False)
        except StoreError:
            self._to_release += runs
            raise
        self._metrics.released.labels(reason).inc(len(states))
        return states

    async def release_all(self, reason: str, *, blame: bool) -> dict[str, str]:
        """Abort and release all jobs; `blame` counts the attempt against each that has begun.

        Returns the jobs' new states by id. Raises StoreError.
        """
        _note_release(self.runs.values(), reason)
        for run in self.runs.values():
            run.abort(release=True)
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2.0)
        runs = {*self._to_release, *self.runs.values()}
        states: dict[str, str] = {}
        for blamed in (True, False):
            jobs = [run.job for run in runs if (blame and run.has_begun) is blamed]
            if jobs:
                states |= await self._queue.release(jobs, reason, blame=blamed)
        self._metrics.released.labels(reason).inc(len(states))
        return states


def _note_release(runs: Iterable[JobRun], reason: str) -> None:
    """For the spans of those that are traced."""
    for run in runs:
        if run.trace is not None:
            run.trace.released(reason)


def _export_load(engine: Engine, metrics: WorkerMetrics) -> None:
    """Compute the engine's load at each scrape: between two claims nothing else updates it."""
    slots = engine.capacity.max_num_seqs
    metrics.slots.labels("busy").set_function(lambda: engine.load().unfinished)
    metrics.slots.labels("free").set_function(lambda: max(0, slots - engine.load().unfinished))
    metrics.kv_usage.set_function(lambda: engine.load().kv_usage)

"""The worker's loop: what is in hand, what may be claimed, what others say of it.

Claims are claimer.py's, what each job does is runner.py's.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgpack.exceptions import UnpackException

from shared.platform import redis_client as connections
from shared.platform.metrics import WorkerMetrics
from shared.platform.redis_client import RedisError
from shared.protocol.frames import ControlKind, decode_control
from shared.protocol.job import LeasedJob
from shared.protocol.scripts.acquire import parse_jobs
from shared.protocol.states import JobState
from shared.queue.job_queue import JobQueue
from worker.claim.admission import Decision, Snapshot, decide, free_slots
from worker.claim.advertised_slots import AdvertisedSlots
from worker.claim.claimer import Claimer
from worker.claim.lease import Lease
from worker.claim.queue_consumer import QueueConsumer
from worker.engines.protocol import Engine
from worker.publish.publisher import Publisher
from worker.run.runner import Outcome, Run

log = logging.getLogger("flotilla.loop")

# A message that was sent longer ago has come, or is lost.
_ON_ITS_WAY_S = 0.25
_AGES = 16
"""Most ages in a heartbeat."""


@dataclass(slots=True)
class Done:
    """What this worker has done since its start; see the fields of the same names in WorkerInfo."""

    finished: int = 0
    job_seconds: float = 0.0
    request_bytes: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0

    def add(self, run: Run) -> None:
        """A job has left its hands."""
        self.finished += 1
        self.job_seconds += time.monotonic() - run.started
        self.request_bytes += len(run.job.body)
        self.prompt_tokens += run.buffer.prompt_tokens
        self.completion_tokens += run.buffer.completion_tokens


class Loop:
    """Claims jobs of one pool for one engine. `runs` holds those in hand, by job id.

    `urls` are those of the queue's servers.
    """

    def __init__(
        self,
        queue: JobQueue,
        urls: Sequence[str],
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        pool: str,
        worker_id: str,
        lease_s: float,
        kv_high_watermark: float,
    ) -> None:
        self.runs: dict[str, Run] = {}
        self.offers = AdvertisedSlots(
            self._free, pool=pool, worker=worker_id, lease_s=lease_s, shards=queue.shards
        )
        self.lease = Lease(queue, worker_id, lease_s, self.runs, self.lose)
        self.publisher = Publisher(queue, metrics, self.lease, self.offers)
        self.done = Done()
        self._queue = queue
        self._engine = engine
        self._metrics = metrics
        self._pool = pool
        self._worker_id = worker_id
        self._lease_s = lease_s
        self._kv_high_watermark = kv_high_watermark
        self._draining = False
        self._entering: list[Run] = []  # those of `runs` that may not have reached the engine yet
        self._to_release: list[Run] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._rejecting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._changed = asyncio.Event()
        self._blocking = [connections.connect_blocking(url) for url in urls]
        self._claimers = [
            Claimer(self._claims(place), self._decide, self._start) for place, _ in enumerate(urls)
        ]
        self._last_step = time.monotonic()
        engine.on_step = self._on_step
        # Read when they are scraped: between two claims nobody else would look.
        self._slots = slots = engine.capacity.max_num_seqs
        metrics.slots.labels("busy").set_function(lambda: engine.load().unfinished)
        metrics.slots.labels("free").set_function(lambda: max(0, slots - engine.load().unfinished))
        metrics.kv_usage.set_function(lambda: engine.load().kv_usage)

    def ages(self) -> tuple[float, ...]:
        """How long the jobs in hand have been so, the oldest first; of many, an even sample."""
        now = time.monotonic()
        ages = sorted((now - run.started for run in self.runs.values()), reverse=True)
        return tuple(round(age, 1) for age in ages[:: -(-len(ages) // _AGES) or 1])

    async def run(self) -> None:
        """Claim until told to drain; ends by cancellation as well."""
        try:
            await asyncio.gather(*(claimer.run() for claimer in self._claimers))
        finally:
            self._rejecting.cancel()
            self.offers.end()
            with contextlib.suppress(RedisError, OSError):
                await self._queue.withdraw_slots(self._pool, self._worker_id, self._lease_s)
            for redis in self._blocking:
                await redis.aclose()

    def _claims(self, place: int) -> QueueConsumer:
        return QueueConsumer(
            self._queue,
            self._blocking[place],
            place,
            pool=self._pool,
            worker=self._worker_id,
            lease_s=self._lease_s,
            offers=self.offers,
        )

    @property
    def decision(self) -> Decision:
        """What may be claimed now, and why. Safe to look at from another thread."""
        return decide(self._snapshot(sum(map(self._enters, list(self._entering)))))

    def _decide(self) -> Decision:
        """For one claimer: what others have asked for is not its own, nor all of the rest."""
        asked = sum(claimer.asked for claimer in self._claimers)
        entering = sum(map(self._enters, list(self._entering)))
        return decide(self._snapshot(entering + asked), len(self._claimers))

    def _snapshot(self, entering: int) -> Snapshot:
        load = self._engine.load()
        return Snapshot(
            slots=self._slots,
            unfinished=load.unfinished,
            entering=entering,
            kv_usage=load.kv_usage,
            kv_high_watermark=self._kv_high_watermark,
            draining=self._draining,
        )

    def _free(self) -> int:
        """Slots that no job takes or is about to take."""
        if self._entering:
            self._entering = [run for run in self._entering if self._enters(run)]
        return free_slots(self._snapshot(len(self._entering)))

    def _enters(self, run: Run) -> bool:
        """It is in hand, and on its way into the engine."""
        return not run.buffer.entered and run.job.id in self.runs

    def hear(self, message: bytes) -> None:
        """What comes on the control channel: jobs, and which ones were ended by somebody else."""
        try:
            kind, words = decode_control(message)
            jobs = parse_jobs(*words) if kind is ControlKind.JOBS else []
            dropped = words[0].decode() if kind is ControlKind.DROP else ""
        except (ValueError, TypeError, LookupError, AttributeError, UnpackException) as error:
            log.error("a message that is none: %r", error)
            return
        for job in jobs:
            self.offers.took(job.shard)
            self._start(job)
        if dropped in self.runs:
            # Only a hint, a refused write says it too: abort it now.
            self.runs[dropped].drop()

    def missed(self) -> None:
        """There was no connection for a while on which `hear` would have been called."""
        self._rejecting.cancel()
        self._rejecting = asyncio.create_task(self._reject_unreceived(), name="reject_unreceived")

    async def _reject_unreceived(self) -> None:
        await asyncio.sleep(2 * _ON_ITS_WAY_S)
        for _ in range(2):  # turns of the loop: what came while it stood still is read first
            await asyncio.sleep(0)
        self.offers.forget()
        with contextlib.suppress(RedisError, OSError):  # then their leases run out
            known = list(self.runs)
            lost = await self._queue.reject_unreceived(
                self._pool, self._worker_id, known, _ON_ITS_WAY_S
            )
            for job_id, state in lost.items():
                log.warning("%s was given to us and not received, now %s", job_id, state)

    def _start(self, job: LeasedJob) -> None:
        self._metrics.queue_wait.observe(job.waited_s)
        if job.attempt > 1:
            self._metrics.retried.inc()
        if job.id in self.runs:
            self.runs[job.id].drop()  # somebody took it from us and gave it back
        run = Run(job, self._engine, self.publisher, self._metrics)
        self.runs[job.id] = run
        self._entering.append(run)
        task = asyncio.create_task(self._carry_out(run), name=run.job.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carry_out(self, run: Run) -> None:
        try:
            outcome = await run.carry_out()
        except Exception:
            log.exception("%s: the run failed", run.job.id)
            outcome = Outcome.LOST
            await self._release(run, "run_failed")
        if outcome is Outcome.HAND_BACK:
            self._to_release.append(run)
        else:
            self.done.add(run)
            if outcome is Outcome.FINISHED:
                self._count(run)
        # A newer lease of the same job may be in our hands already.
        if self.runs.get(run.job.id) is run:
            del self.runs[run.job.id]
        self._changed.set()
        for claimer in self._claimers:
            claimer.look()

    async def _release(self, run: Run, reason: str) -> None:
        """Hand one job back at once, while its last entries are in the step log."""
        run.drop()
        self._metrics.released.labels(reason).inc()
        with contextlib.suppress(RedisError, OSError):  # then its lease runs out
            states = await self._queue.release([run.job], reason, blame=True)
            for job_id, state in states.items():
                log.warning("%s handed back, now %s", job_id, state)

    def _count(self, run: Run) -> None:
        self._metrics.finished.of(run.ended_as, run.error_code).inc()
        self._metrics.prompt_tokens.inc(run.buffer.prompt_tokens)
        self._metrics.completion_tokens.inc(run.buffer.completion_tokens)

    def lose(self, job: LeasedJob, state: str) -> None:
        """The lease is not ours any more: `state` is what the job is now."""
        run = self.runs.get(job.id)
        # The same job may be in our hands anew, under another lease.
        if run is None or run.buffer.dropped or run.job.lease_id != job.lease_id:
            return
        if run.ended_as == state:  # as we have said ourselves; the reply is on its way
            return
        self._metrics.fenced.labels(state).inc()
        # A client that leaves is nothing to tell people of; a lost lease is.
        usual = state in {JobState.CANCELLED, JobState.EXPIRED}
        log.log(logging.DEBUG if usual else logging.WARNING, "%s is %s, dropped", job.id, state)
        run.drop()

    def progressing(self, stall_s: float) -> bool:
        """The engine is idle, or has ended a step not long ago."""
        idle = self._engine.load().unfinished == 0
        if idle:
            self._last_step = time.monotonic()
        return idle or time.monotonic() - self._last_step < stall_s

    def _on_step(self) -> None:
        self._last_step = time.monotonic()
        self.publisher.step()

    # --- ending ---

    def drain(self) -> None:
        """Claim nothing more."""
        self._draining = True
        for claimer in self._claimers:
            claimer.end()
        self._changed.set()

    async def finished(self, deadline_s: float) -> bool:
        """Wait until nothing is in hand; False if the deadline came first."""
        try:
            async with asyncio.timeout(deadline_s):
                while self.runs:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return False
        return True

    async def hand_back(self, reason: str, *, blame: bool) -> dict[str, str]:
        """Abort what is in hand and release it; returns the jobs' new states."""
        for run in self.runs.values():
            run.give_back()
        if self._tasks:
            await asyncio.wait(set(self._tasks), timeout=2.0)
        jobs = [run.job for run in {*self._to_release, *self.runs.values()}]
        self._metrics.released.labels(reason).inc(len(jobs))
        return await self._queue.release(jobs, reason, blame=blame) if jobs else {}

"""The jobs of a worker: it claims them, starts them on its engine, publishes their output, and
finishes them or gives them back.

Request path: `worker/core/claim.py` -> here -> `worker/core/run.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from shared.job.states import JobState
from shared.platform import logs
from shared.platform.logs import RareWarning
from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import run_together
from shared.store.errors import StoreError, until_answered
from shared.store.fleet_registry import Registry
from shared.store.queue import HeldJob, Queue
from worker.core.claim import Charges, Claims, HomeShards, Room, cheapest, yieldable
from worker.core.output import Output
from worker.core.publish import REVOKED, Publisher
from worker.core.run import Outcome, Run
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.worker")

_ENGINE_S = 2.0
"""Time for claims in flight, and for the engine to end requests, as the worker ends."""
_ASK_S = 1.0
"""Longest wait for the answers to a worker's last claims."""
_GIVE_BACK_S = 10.0
_NEWEST = 1 / 32
"""The part of a job in the moving mean."""


@dataclass(slots=True)
class WorkTotals:
    """Of all jobs since the worker's start; see the fields of the same names in WorkerInfo."""

    finished: int = 0
    job_s: float = 0.0
    prompt_tokens: int = 0
    output_tokens: int = 0


def how_many(room: int, waiting: int, jobs: int, sequences: int) -> int:
    """How many of a worker's jobs, which have so many sequences together, may move now.

    `room`: of other workers; `waiting`: jobs that wait, which take some of it.
    """
    per_job = max(1.0, sequences / jobs) if jobs else 1.0
    return min(jobs, int(max(0, room - waiting) / per_job))


class Jobs:
    """The jobs of one worker of a pool. All parts of it get this object."""

    def __init__(
        self,
        queue: Queue,
        pool: str,
        worker_id: str,
        engine: Engine,
        metrics: WorkerMetrics,
        *,
        kv_high_watermark: float,
    ) -> None:
        """Above `kv_high_watermark` (0 to 1) of the KV cache nothing is claimed."""
        self.queue = queue
        self.pool = pool
        self.worker_id = worker_id
        self.engine = engine
        self.metrics = metrics
        self.runs: dict[str, Run] = {}
        """By job id. The run of a job's newest claim replaces older ones."""
        self.tasks: set[asyncio.Task[None]] = set()
        """Of all runs that have not ended, those of jobs that were given back included."""
        self.engine_lost = asyncio.Event()
        """A run has ended because the engine is dead."""
        self.operator_calls = 0
        """Those that the engine carries out now. It may make no step meanwhile."""
        self.charges = Charges(queue.share_rules)
        self.room = Room(engine, kv_high_watermark, self.charges)
        self.homes = HomeShards(self)
        self.publisher = Publisher(self)
        self.claims = [Claims(self, each) for each in self.publisher.shards]
        self._totals = WorkTotals()
        self._run_ended = asyncio.Event()
        self._warn = RareWarning(log)
        engine.on_step = self.publisher.on_step
        # Computed at each scrape: between two claims nothing else updates it.
        slots, busy = engine.capacity.max_num_seqs, metrics.slots.labels("busy")
        busy.set_function(lambda: engine.load().unfinished)
        free = metrics.slots.labels("free")
        free.set_function(lambda: max(0, slots - engine.load().unfinished))
        metrics.kv_usage.set_function(lambda: engine.load().kv_usage)

    async def run(self) -> None:
        """Claim and publish until cancellation. Claims go on without room, too, as Redis compares
        what the worker has."""
        claims = (each.run() for each in self.claims)
        await run_together(self.publisher.run(), self.homes.run(), *claims)

    # --- one job ---

    def start(self, job: HeldJob) -> None:
        """Run a job that was claimed."""
        self.metrics.queue_wait.observe(job.waited_s)
        if job.known_blocks is not None:
            self.metrics.placed.labels(str(job.known_blocks)).inc()
        if job.attempt > 1:
            self.metrics.retried.inc()
        previous, run = self.runs.get(job.id), Run(self, job)
        self.publisher.of(run.output).add(run.output)
        self.runs[job.id] = run
        self.room.started(run.output)
        self.charges.started(run.output)
        run.task = task = asyncio.create_task(self._execute(run, previous), name=job.id)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _execute(self, run: Run, previous: Run | None) -> None:
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
            run.output.has_begun = True
            await self.release([run.output], "run_failed", blame=True)
        self._finish(run, outcome)

    def _finish(self, run: Run, outcome: Outcome) -> None:
        output, died = run.output, self.engine.dead
        ending = run.ending or ("engine_died" if died else outcome.value)
        log.debug("the run has ended: %s", ending)
        released = run.released or outcome is Outcome.RELEASE
        if outcome is Outcome.RELEASE and died:
            self.engine_lost.set()
        elif outcome is Outcome.LOST and not released:
            self.publisher.of(output).remove(output)
        elif outcome is Outcome.FINISHED and not released:
            self.metrics.finished.of(run.ending, run.error_code).inc()
            self.metrics.prompt_tokens.inc(output.prompt_tokens)
            self.metrics.completion_tokens.inc(output.completion_tokens)
        self.charges.ended(run.job.shard, output, is_over=not released)
        totals = self._totals
        totals.output_tokens += output.new_tokens
        if not released:
            totals.finished += 1
            took_s = time.monotonic() - run.started
            totals.job_s += (took_s - totals.job_s) * max(_NEWEST, 1 / totals.finished)
            totals.prompt_tokens += output.prompt_tokens
        if self.runs.get(run.job.id) is run:  # else it runs again, or was given back
            del self.runs[run.job.id]
        self._run_ended.set()
        self.claim_again(run.job.shard if outcome is Outcome.FINISHED else None)
        if run.trace is not None:
            run.trace.write(output, self.worker_id, ending, run.error_code)

    def lost(self, output: Output, state: str) -> None:
        """Abort the run of a job that is not this worker's any more; `state` is its state now."""
        run = self.runs.get(output.id)
        if run is None or run.output is not output:  # it may run again
            return
        if state != REVOKED:
            self.metrics.fenced.labels(state).inc()
        # Clients cancel all the time; a job that another worker has taken is worth a warning.
        ended_by_client = state in {JobState.CANCELLED, JobState.EXPIRED, REVOKED}
        level = logging.DEBUG if ended_by_client else logging.WARNING
        log.log(level, "job lost, run aborted: it is %s", state, extra=run.job.log_fields)
        run.abort(state if ended_by_client else "lost")

    @property
    def totals(self) -> WorkTotals:
        """The sums, with the tokens of the jobs that run."""
        running = sum(run.output.new_tokens for run in self.runs.values())
        return replace(self._totals, output_tokens=self._totals.output_tokens + running)

    # --- whether it claims ---

    def claim_again(self, told: int | None = None) -> None:
        """Claim now, if there is room; not in the shard `told` if the end of a job there has told
        all that a claim would."""
        for shard in self.homes.shards:
            if shard != told or self.publisher.shards[shard].must_claim:
                self.claims[shard].wake()

    def idle_room(self, shard: int) -> tuple[str, int]:
        """The pool, and how many more of its jobs the worker could claim now. Told with the end of
        a job, so that no claim has to tell it."""
        return self.pool, self.room.free() if shard in self.homes.shards else 0

    async def pause(self, reason: str) -> None:
        """Claim nothing until `room.paused` is empty again; running jobs go on."""
        self.room.paused = reason
        for claims in self.claims:
            await claims.settled.wait()

    async def drain(self) -> None:
        """Claim nothing more, and tell it. If Redis does not answer, for a second."""
        self.room.draining = True
        await self._ask([(claims, 0) for claims in self.claims])

    async def _ask(self, pairs: Iterable[tuple[Claims, int]]) -> None:
        """Claim once in some shards, for so many jobs that wait there."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_ASK_S):
                for claims, waiting in pairs:
                    await claims.ask(waiting)

    async def take_back(self) -> bool:
        """Claim the jobs that workers have handed over, if no other worker of the pool serves
        any more: those that end at one time may hand jobs over to each other, and each looks here
        after its own have left. Returns whether there are any.
        """
        try:
            given_back = await self.queue.given_back(self.pool)
            workers = await Registry(self.queue.servers.primary).workers()
        except StoreError as error:
            log.warning("no look for jobs that were handed over: %s", error)
            return False
        others = (w for w in workers if w.pool == self.pool and w.id != self.worker_id)
        if not any(given_back) or any(other.state.serving for other in others):
            return False
        self.room.taken_back = sum(given_back)
        pairs = zip(self.claims, given_back, strict=True)
        await self._ask((claims, waiting) for claims, waiting in pairs if waiting)
        self.room.taken_back = 0
        await self.drain()  # there is no room any more
        return bool(self.runs)

    async def wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no job runs, for so long at most."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while self.runs:
                    self._run_ended.clear()
                    await self._run_ended.wait()

    # --- jobs that are given back: the worker that claims one continues its log ---

    async def release(self, outputs: Sequence[Output], reason: str, *, blame: bool = False) -> None:
        """Abort jobs and give them back, for a reason that stands in their history. `blame` counts
        an attempt against each that has begun and has added nothing; the others keep their places.

        If Redis does not answer for 10 s, the next claim gives them back, or their lease ends.
        """
        blamed: list[HeldJob] = []
        others: list[HeldJob] = []
        for output in outputs:
            (blamed if blame and output.has_begun else others).append(output.job)
            output.discarded = True
            run = self.runs.get(output.id)
            if run is not None and run.output is output:
                del self.runs[output.id]
                run.abort(reason, release=True)
        try:
            async with asyncio.timeout(_GIVE_BACK_S):
                await self._give_back(blamed, "requeued", reason)
                await self._give_back(others, "handed_over", reason)
        except (StoreError, TimeoutError) as error:
            log.warning("jobs not given back: others get them later", exc_info=error)
        finally:
            for output in outputs:
                self.publisher.of(output).remove(output)

    async def _give_back(
        self, jobs: Sequence[HeldJob], event: Literal["handed_over", "requeued"], reason: str
    ) -> None:
        if not jobs:
            return
        states = await until_answered(
            lambda: self.queue.give_back(jobs, event, reason), "jobs were not given back"
        )
        for job_id, state in (states or {}).items():
            log.info("job given back (%s), it is %s now", reason, state, extra={"job_id": job_id})

    async def release_all(self, reason: str, *, blame: bool = False) -> None:
        """Give all jobs back as the worker ends; see `release`."""
        self.room.draining = True
        with contextlib.suppress(TimeoutError):  # a claim in flight brings jobs
            async with asyncio.timeout(_ENGINE_S):
                for claims in self.claims:
                    await claims.settled.wait()
        await self.release(self.publisher.outputs(), reason, blame=blame)
        if self.tasks:
            await asyncio.wait(set(self.tasks), timeout=_ENGINE_S)

    async def make_room(self, shard: int, count: int) -> None:
        """So many jobs of better lanes wait: jobs of the lane flex make room for them. They are
        claimed once the engine has ended those, at the latest with the next look at the room."""
        if not self.room.draining:
            chosen = yieldable(self.publisher.shards[shard])[:count]
            await self.release(chosen, "handed_back")
            self.claims[shard].wake(len(chosen))

    async def hand_over(self) -> None:
        """Hand as many jobs over as other workers have room for now."""
        outputs = self.publisher.outputs()
        try:
            free = await self.queue.free_room(self.pool, but_of=self.worker_id)
        except StoreError as error:
            self._warn("jobs not handed over, trying again: %s", error)
        else:
            sequences = self.engine.load().unfinished
            count = how_many(free.room, free.waiting, len(outputs), sequences)
            await self.release(cheapest(outputs)[:count], "handed_over")

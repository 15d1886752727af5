"""Which jobs a worker claims, and when: as many as its engine has room for, and no more. A job that
waits inside an engine can't be taken by an idle worker, so all others wait in Redis.

A worker pulls. It asks each shard once a second, with room or without, paused or draining, and
tells how many jobs it knows that it has there: a claim whose reply was lost shows by that. It asks
at once when room has become free, and when `submit` has woken it on its control channel.

On a cluster it has home shards: there it claims as soon as it has room, and is woken for jobs
before other workers. It asks the other shards each second, and is woken for their jobs if none of
their own workers has room.

Request path: `shared/store/queue.py` -> here -> `worker/core/jobs.py`.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from shared.job.rules import FIRST_TOKENS, FLEX, OUTPUT_COST, ShareRules, cost
from shared.job.states import WorkerState
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.store.errors import TRANSIENT, StoreError
from shared.store.fleet_registry import Registry
from worker.core.output import Charged, Output
from worker.core.publish import ShardPublisher
from worker.engines.interface import Engine

if TYPE_CHECKING:
    from worker.core.jobs import Jobs

log = logging.getLogger("flotilla.claim")

ASK_S = 1.0
"""Between two claims that nothing else brings about."""
CLAIM_BATCH = 16
"""Most jobs of one claim: between two of them other workers get their share."""
FLEX_PART = 10
"""One in so many of a worker's jobs may be of the lane flex, whatever waits: none of fewer."""
_LOOK_S = 0.25
"""Between two looks whether there is room: the KV cache empties without an event."""
_RETRY_BASE_S, _RETRY_CAP_S = 0.02, 0.25
_HISTORY = 20
"""Jobs that the means are made of, about: the latest."""
_REPORTS_PER_HALF_LIFE = 20
_REPORT_S = 0.25
"""Between two reports of the jobs that run, where levels never halve."""
_SHARED_S = 1.0
"""So long after a claim of one of several tenants' jobs they count as several."""
_ADAPTER_TURN_S = 2.0
"""So long a job may wait for its adapter's place in the engine while others go past it."""
_BYTES_PER_TOKEN = 4
"""Of a body whose prompt the engine has not counted yet: about."""
_HOMES_S = 1.0
"""Between two looks at the other workers."""
_WORKERS_AT_FULL_RATE = 20
"""More read less often each: the reply grows with their number, too."""


class Charges:
    """What the tenants of a worker's jobs have been served, as their levels count it.

    A claim charges what a job is expected to cost. The difference to what it has cost so far, and
    at its end, is reported with the next claim; levels forget a report that is lost.
    """

    def __init__(self, rules: ShareRules) -> None:
        self._ahead = rules.ahead * OUTPUT_COST
        self._half_life_s = rules.half_life_s
        self.prompt_tokens = FIRST_TOKENS
        """Mean of the latest jobs."""
        self._output_tokens = FIRST_TOKENS  # likewise
        self._n_ended = 0
        self._ended: dict[int, dict[tuple[str, str], float]] = {}  # by shard, lane and tenant
        # Those that end are reported with the next claim.
        self._report_s = rules.half_life_s / _REPORTS_PER_HALF_LIFE or _REPORT_S
        self._reported_at: dict[int, float] = {}
        self._shared_until = 0.0

    @property
    def expected_cost(self) -> float:
        """What is charged as a job is claimed."""
        return self.prompt_tokens + self._ahead * self._output_tokens

    def started(self, output: Output) -> None:
        """A job was claimed."""
        if output.job.share.charged:
            self._shared_until = time.monotonic() + _SHARED_S

    def ended(self, shard: int, output: Output, *, is_over: bool) -> None:
        """A job has left this worker; `is_over`: it has ended, so it is an example for others."""
        if is_over:
            self._n_ended = min(_HISTORY, self._n_ended + 1)
            for_each = 1 / self._n_ended
            self.prompt_tokens += (output.prompt_tokens - self.prompt_tokens) * for_each
            self._output_tokens += (output.completion_tokens - self._output_tokens) * for_each
        self._charge(output, 0.0, self._ended.setdefault(shard, {}))

    def take(self, shard: int, outputs: Iterable[Output]) -> Mapping[tuple[str, str], float]:
        """What is to be added to the levels of (lane, tenant) in a shard, once.

        Mostly it is only that of jobs that have ended, and nothing where one tenant is alone.
        """
        now = time.monotonic()
        is_due = now > self._reported_at.get(shard, 0.0) + self._report_s
        if not is_due and now > self._shared_until:
            return {}
        charges = self._ended.pop(shard, {})
        if not is_due:
            return charges
        self._reported_at[shard] = now
        for output in outputs:
            left = max(0.0, self._output_tokens - output.new_tokens)
            self._charge(output, self._ahead * left, charges)
        return charges

    def _charge(
        self, output: Output, expected: float, charges: dict[tuple[str, str], float]
    ) -> None:
        share, before, now = output.job.share, output.charged, time.monotonic()
        # What earlier attempts have made was charged as they made it.
        made = cost(0 if output.taken_over else output.prompt_tokens, output.new_tokens)
        # Less than was charged: else a tenant with short answers would be paid for each.
        halved = 2 ** ((before.at - now) / self._half_life_s) if self._half_life_s else 1.0
        charge = (made - before.cost + expected) / share.weight - before.ahead * halved
        account = share.lane, output.job.tenant
        charges[account] = charges.get(account, 0.0) + charge
        output.charged = Charged(made, expected / share.weight, now)


class Room:
    """How many more jobs the engine has room for.

    A job takes one slot from its claim on; once it has reached the engine, the engine's own load
    counts its sequences instead. So does its prompt take room in the KV cache, until its first
    token shows that the engine has counted it.
    """

    def __init__(self, engine: Engine, kv_high_watermark: float, charges: Charges) -> None:
        self._engine = engine
        self._charges = charges
        self._capacity = engine.capacity
        self._kv_high_watermark = kv_high_watermark
        self._starting: list[Output] = []  # claimed, and without output
        self._latest_start = 0.0  # of those with output
        self.requested = 0
        """How many jobs the claims in flight may bring."""
        self.draining = False
        self.taken_back = 0
        """How many jobs it may claim though it drains."""
        self.paused = ""
        """Why an operator has paused the worker, in words; empty if none has."""

    def free(self) -> int:
        """Jobs that may be claimed beside those of claims in flight."""
        if self.paused or self._engine.dead or (self.draining and not self.taken_back):
            return 0
        free = self._look(self.requested)[0]
        return min(free, self.taken_back) if self.draining else free

    def started(self, output: Output) -> None:
        """A job was claimed."""
        self._starting.append(output)

    @property
    def state(self) -> tuple[WorkerState, str]:
        """The worker's state, and why, in a short sentence that /readyz and the registry show.
        Safe to call from another thread."""
        if self.draining or self._engine.dead:
            return WorkerState.DRAINING, "draining: claims nothing"
        if self.paused:
            return WorkerState.PAUSED, f"{self.paused}: claims nothing"
        free, reason = self._look()
        return WorkerState.READY if free else WorkerState.BUSY, reason

    def _look(self, requested: int = 0) -> tuple[int, str]:
        """How many jobs may be claimed beside so many, and why no more."""
        load, capacity, watermark = self._engine.load(), self._capacity, self._kv_high_watermark
        mean = min(self._charges.prompt_tokens, capacity.max_model_len)
        taken, prompt_tokens = load.unfinished + requested, requested * mean
        starting: list[Output] = []
        for output in self._starting:
            if output.is_starting:
                starting.append(output)
                taken += not output.reached_engine
                body_bytes = output.job.body_bytes or len(output.job.body)
                estimate = output.prompt_tokens or body_bytes // _BYTES_PER_TOKEN
                prompt_tokens += min(estimate, capacity.max_model_len)
            elif output.new_tokens:
                self._latest_start = max(self._latest_start, output.started)
        self._starting = starting
        slots = free = max(0, capacity.max_num_seqs - taken)
        kv_usage = load.kv_usage
        if capacity.kv_tokens:
            kv_usage += prompt_tokens / capacity.kv_tokens
            # One at least: a prompt may be shorter, or in the cache already.
            prompts = (watermark - kv_usage) * capacity.kv_tokens / max(1.0, mean)
            free = min(slots, max(1, int(prompts)))
        if not slots:
            return 0, f"all {capacity.max_num_seqs} slots are taken"
        if capacity.max_loras and starting:
            # New jobs of the adapters that run would keep one that waits for its adapter's place
            # waiting without an end: vLLM starts those first.
            due = min(self._latest_start, time.monotonic() - _ADAPTER_TURN_S)
            if any(each.reached_engine and each.started < due for each in starting):
                return 0, "a job waits for other adapters' jobs to end"
        if kv_usage > watermark:
            return 0, f"KV cache {kv_usage:.0%} full"
        if free < slots:
            return free, f"the KV cache has room for {free} more"
        return free, f"{free} of {capacity.max_num_seqs} slots are free"


def homes(worker: str, others: Collection[str], shards: int) -> frozenset[int]:
    """The home shards of one of a pool's serving workers, by its rank among them.

    With at least as many workers as shards each has one home, else each shard one worker; their
    numbers differ by one at most.
    """
    ranked = sorted({worker, *others})
    n = min(len(ranked), shards)
    return frozenset(range(ranked.index(worker) % n, shards, n))


class HomeShards:
    """The home shards of one worker: all on one Redis, where one claim is about all shards."""

    def __init__(self, jobs: Jobs) -> None:
        self.shards = frozenset(range(jobs.queue.shards))
        self._jobs = jobs

    async def run(self) -> None:
        """Follow the other workers that come and go, until this one drains."""
        jobs, n_shards = self._jobs, self._jobs.queue.shards
        registry, others = Registry(jobs.queue.servers.primary), list[str]()
        while len(jobs.queue.servers.groups) > 1 and not jobs.room.draining:
            with contextlib.suppress(StoreError):  # the homes stay as they are
                found = await registry.workers()
                others = [w.id for w in found if w.pool == jobs.pool and w.state.serving]
                own = homes(jobs.worker_id, others, n_shards)
                if own != self.shards:
                    log.info("home shards: %s", ", ".join(map(str, sorted(own))))
                    self.shards = own
                    jobs.claim_again()
            interval_s = _HOMES_S * max(1.0, len(others) / _WORKERS_AT_FULL_RATE)
            await asyncio.sleep(random.uniform(0.7, 1.0) * interval_s)


class Claims:
    """The claims of one worker in one shard. One is in flight at most."""

    def __init__(self, jobs: Jobs, publisher: ShardPublisher) -> None:
        self.settled = asyncio.Event()
        """Set while no claim is in flight, which may bring jobs."""
        self.settled.set()
        self._jobs = jobs
        self._room = jobs.room
        self._shard = publisher.shard
        self._publisher = publisher
        self._must_reconcile = False
        self._has_room = False  # as of the latest claim
        self._told = 0  # of so many waiting jobs
        self._woken = asyncio.Event()
        self._asked = asyncio.Event()
        self._warn = RareWarning(log)

    def wake(self, waiting: int = CLAIM_BATCH) -> None:
        """Claim now: so many jobs wait for this worker, or room has become free."""
        self._told += waiting
        self._woken.set()

    async def ask(self, waiting: int = 0) -> None:
        """Claim once, for so many jobs that wait, and return when Redis has answered. Redis knows
        then how much room there is: without any no worker hands jobs over to this one."""
        await self.settled.wait()
        self._asked.clear()
        self.wake(waiting)
        await self._asked.wait()

    async def run(self) -> None:
        """Claim until cancellation."""
        backoff = Backoff(_RETRY_BASE_S, _RETRY_CAP_S)
        while True:
            self._woken.clear()
            try:
                is_done = await self.claim()
            except TRANSIENT as error:
                self._warn("claim failed, trying again: %s", error, shard=self._shard)
                await asyncio.sleep(backoff.next_delay_s())
            else:
                backoff.reset()
                self._asked.set()
                self._warn.over("Redis answers claims of shard %s again", self._shard)
                if is_done:
                    await self._wait()

    async def claim(self) -> bool:
        """Ask once. Returns whether there is nothing more to ask for now. Raises StoreError."""
        jobs, outputs, room = self._jobs, self._publisher.outputs, self._room
        if self._must_reconcile:
            await jobs.queue.reconcile(self._shard, jobs.worker_id, list(outputs))
            self._must_reconcile = False
            return False
        free, told, self._told = room.free(), self._told, 0
        most = min(free, told or free, CLAIM_BATCH)
        room.requested += most
        self.settled.clear()
        try:
            claimed = await jobs.queue.claim(
                self._shard,
                jobs.pool,
                jobs.worker_id,
                room=free,
                known=len(outputs),
                most=most,
                yieldable=len(yieldable(self._publisher)),
                blame=self._publisher.blame,
                at_home=self._shard in jobs.homes.shards,
                charges=jobs.charges.take(self._shard, outputs.values()),
                expected_cost=jobs.charges.expected_cost,
            )
        finally:
            self.settled.set()
            room.requested -= most
        self._must_reconcile = claimed is None
        if claimed is None:
            return False
        for job in claimed:
            jobs.start(job)
        self._has_room = len(claimed) < free
        return len(claimed) < CLAIM_BATCH or not room.free()

    async def _wait(self) -> None:
        """Until `wake`, for `ASK_S` at most, or until there is room again, or less blame."""
        had_room, blame = self._has_room, self._publisher.blame
        for _ in range(round(ASK_S / _LOOK_S)):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._woken.wait()
            if self._woken.is_set() or (not had_room and self._room.free()):
                return
            if self._publisher.blame < blame:
                return


def yieldable(publisher: ShardPublisher) -> list[Output]:
    """The jobs of the lane flex that would make room for better lanes, those first that cost least
    to continue elsewhere. A part of the worker's jobs stays, so that the lane goes on."""
    outputs = publisher.outputs.values()
    flex = [output for output in outputs if output.job.share.lane == FLEX]
    movable = cheapest(each for each in flex if not each.job.stays)
    return movable[: max(0, len(flex) - len(outputs) // FLEX_PART)]


def cheapest(outputs: Iterable[Output]) -> list[Output]:
    """The jobs that other workers could continue: those first that the engine has not begun, then
    those with least output."""
    movable = [each for each in outputs if each.movable and not (each.discarded or each.result)]
    return sorted(movable, key=lambda each: (each.reached_engine, each.completion_tokens))

"""What is put right, and removed, from time to time: in the queue, in append-only files, and in
records that are not used any more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Collection

from shared.job.states import JobState
from shared.platform.logs import RareWarning
from shared.platform.metrics.losses import UpkeepMetrics
from shared.platform.tasks import run_together
from shared.store import keys
from shared.store.batch_records import BatchRecords
from shared.store.errors import StoreError, StoreRefused, StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.operators import ScaleStore
from shared.store.queue import Queue, Ticked
from shared.store.servers import Servers
from shared.store.views import depths, pool_names

log = logging.getLogger("flotilla.upkeep")
maintenance_log = logging.getLogger("flotilla.maintenance")

_INTERVAL_S = 0.15
"""Between two rounds: with the 0.1 s of tick.lua a worker that was killed is found soon."""
_LOCK = 0.7
"""Share of the interval that the lock lasts; it ends before the same process' next round."""
_SWEEP_S = 10.0
_AT_ONCE = 200
"""Records in one call: Redis serves no other call meanwhile."""
KEPT_S = 7 * 86_400.0
"""A model is forgotten so long after its pool has had its last worker and job."""


class Upkeep:
    """What is due in the queue: jobs of lost workers, deadlines, jobs without a watcher, records
    that have expired. Every gateway and the maintenance process run one; a short lock lets one of
    them work at a time. All it does is idempotent: the lock saves effort only.

    Call `run` as a task; it ends by cancellation.
    """

    def __init__(self, queue: Queue, metrics: UpkeepMetrics) -> None:
        self._queue = queue
        self._metrics = metrics
        self._swept: dict[int, float] = {}  # by shard, on the monotonic clock

    async def run(self) -> None:
        """Work on each group by itself: a server that is away delays no other's shards."""
        await run_together(*map(self._keep, self._queue.servers.groups))

    async def _keep(self, shards: range) -> None:
        warn, where = RareWarning(log), self._queue.servers.of(shards[0]).name
        while True:
            await asyncio.sleep(_INTERVAL_S * random.uniform(0.75, 1.25))
            try:
                for shard in shards:
                    await self.round(shard)
            except StoreError as error:
                warn("Redis %s is not available: %s", where, error)
            else:
                warn.over("Redis %s is available again", where)

    async def round(self, shard: int) -> None:
        """One pass over a shard."""
        redis = self._queue.servers.of(shard)
        if not await redis.set(
            keys.of("upkeep", shard), 1, nx=True, px=int(_INTERVAL_S * _LOCK * 1000)
        ):
            return
        more = True
        while more:
            done = await self._queue.tick(shard)
            more = done.more
            self._note(done)
        # By time, not by rounds: in most rounds another process holds the lock.
        if time.monotonic() - self._swept.get(shard, -_SWEEP_S) >= _SWEEP_S:
            self._swept[shard] = time.monotonic()
            while await self._queue.sweep(shard, _AT_ONCE) >= _AT_ONCE:
                pass

    def _note(self, done: Ticked) -> None:
        for worker in done.lost:
            self._metrics.lost_workers.inc()
            log.warning("worker %s has lost its connection to Redis, or stands still", worker)
        for job_id, state in done.taken.items():
            self._metrics.taken.labels(state).inc()
            # Clients leave all the time.
            level = logging.DEBUG if state == JobState.CANCELLED else logging.INFO
            log.log(level, "job taken, it is %s now", state, extra={"job_id": job_id})


async def rewrite_logs(servers: Servers) -> None:
    """Have each server that was started write its append-only file anew, if it has not done so.

    One that was killed while it wrote a transaction cuts off the last command only (7.0), and
    appends to what is left: its next start would carry out that part of the transaction, and drop
    what follows if no other transaction does. Raises StoreError, after all were asked.
    """
    lost: StoreError | None = None
    for redis in servers.all:
        try:
            found = await redis.info("persistence")
            written = found.get("aof_last_rewrite_time_sec", -1) >= 0  # since its start
            if found.get("aof_enabled") and not written and not found["aof_rewrite_in_progress"]:
                with contextlib.suppress(StoreRefused):  # a snapshot is written, or no right to ask
                    await redis.bgrewriteaof()
        except StoreUnavailable as error:
            lost = error
    if lost is not None:
        raise lost


class MaintenanceRuns:
    """When each maintenance task of a fleet has run. Methods raise StoreError."""

    def __init__(self, servers: Servers) -> None:
        self._redis = servers.primary

    async def begin(self, task: str, round_s: float) -> bool:
        """Whether the task is the caller's in this round, which lasts for so long."""
        key = keys.fleet("maintenance_lock", task)
        return bool(await self._redis.set(key, 1, nx=True, px=int(round_s * 1000)))

    async def has_begun(self, task: str) -> bool:
        """Whether any process has begun the task in the present round."""
        return bool(await self._redis.exists(keys.fleet("maintenance_lock", task)))

    async def done(self, task: str) -> None:
        """The task is complete."""
        now_s = int(await self._redis.time())
        await self._redis.hset(keys.fleet("maintenance"), task, now_s)

    async def seconds_since(self, task: str) -> float | None:
        """How long ago any process completed the task; None: never."""
        done_s = await self._redis.hget(keys.fleet("maintenance"), task)
        now_s = int(await self._redis.time())
        return None if done_s is None else now_s - int(done_s)

    async def all(self) -> dict[str, int]:
        """When each task was completed last, Unix seconds."""
        runs = await self._redis.hgetall(keys.fleet("maintenance"))
        return {task.decode(): int(done_s) for task, done_s in runs.items()}

    async def forget_all_but(self, tasks: Collection[str]) -> int:
        """Delete the records of other tasks; returns how many."""
        others = [task for task in await self.all() if task not in tasks]
        return int(await self._redis.hdel(keys.fleet("maintenance"), *others)) if others else 0


async def prune(
    queue: Queue, registry: Registry, pools: Collection[str], tasks: Collection[str]
) -> None:
    """Remove records of workers, models, pools and maintenance tasks that no longer exist.

    `pools` are the names of the autoscaled pools, `tasks` those of all tasks. A model is forgotten
    7 days after its pool has had its last worker, job and open batch. Raises StoreError.
    """
    runs, before = MaintenanceRuns(queue.servers), await registry.known_workers()
    workers = await registry.workers()  # removes those that have expired
    served = {worker.pool for worker in workers} | set(pools)
    unused = await _models_of_others(registry, served | await _with_work(queue, registry))
    forgotten = await registry.unused_for(unused, KEPT_S)
    await registry.forget_models(forgotten)
    used = served | {model.pool for model in (await registry.models()).values()}
    used |= set(await pool_names(queue))
    dropped = {
        "worker": max(0, before - len(workers)),
        "model": len(forgotten),
        "scale": await ScaleStore(queue).forget_but(used),
        "task": await runs.forget_all_but(tasks),
    }
    found = [f"{n} {what} record{'s' * (n > 1)}" for what, n in dropped.items() if n]
    if found:
        maintenance_log.info("removed stale records: %s", ", ".join(found))


async def forget_idle_models(queue: Queue, but: Collection[str]) -> list[str]:
    """Forget the models of pools without work, but those of these pools; returns their names.

    For a Redis whose workers have all ended. Raises StoreError.
    """
    registry = Registry(queue.servers.primary)
    names = await _models_of_others(registry, {*but, *await _with_work(queue, registry)})
    await registry.forget_models(names)
    return names


async def in_use(queue: Queue, registry: Registry) -> set[str]:
    """The pools with a worker, a job or an open batch. Raises StoreError."""
    workers = {worker.pool for worker in await registry.workers()}
    return workers | await _with_work(queue, registry)


async def _with_work(queue: Queue, registry: Registry) -> set[str]:
    """The pools with jobs that wait or run, or with open batches."""
    lanes = await depths(queue)
    found = {lane.pool for lane in lanes if lane.waiting or lane.in_progress}
    if batches := await BatchRecords(queue).open_now():
        named = {batch.model for batch in batches}
        models = (await registry.models()).values()
        # A batch that names none may be for any model: its lines are not read yet.
        found |= {
            each.pool for each in models if "" in named or named & {each.name, each.served_name}
        }
    return found


async def _models_of_others(registry: Registry, pools: Collection[str]) -> list[str]:
    models = await registry.models()
    return [name for name, model in models.items() if model.pool not in pools]

"""The worker's loop on a real queue: a job that comes back to the worker that has lost it."""

from __future__ import annotations

import asyncio

from prometheus_client import CollectorRegistry

from shared.job import LeasedJob
from shared.metrics import WorkerMetrics
from shared.queue import JobQueue
from shared.settings import Settings
from shared.tasks import end
from tests.redis.conftest import POOL, WORKER, lease, take_one
from tests.waiting import eventually
from worker.engines.simulated.engine import SimulatedEngine
from worker.loop import Loop
from worker.runner import Run


async def test_a_refused_write_of_an_old_lease_leaves_the_new_one_alone(queue: JobQueue) -> None:
    engine = SimulatedEngine(Settings())
    metrics = WorkerMetrics(CollectorRegistry())
    loop = Loop(
        queue,
        "",
        engine,
        metrics,
        pool=POOL,
        worker_id=WORKER,
        lease_s=10.0,
        kv_high_watermark=0.95,
    )
    publishing = asyncio.create_task(loop.publisher.run())
    try:
        job = await lease(queue)
        old = Run(job, engine, loop.publisher, metrics)
        await queue.release([job], "drained", blame=False)
        new = Run(await take_one(queue), engine, loop.publisher, metrics)
        loop.runs[job.id] = new
        refused: list[str] = []

        def lose(lost: LeasedJob, state: str) -> None:
            refused.append(lost.nonce)
            loop.lose(lost, state)

        loop.publisher._on_lost = lose
        old.outbox.chunk(b"of the old run")

        async def old_refused() -> bool:
            return refused == [old.job.nonce]

        await eventually(old_refused, "the old run's write was refused")
        assert not new.outbox.dropped
        assert await queue.entries(job.id, 0) == []
    finally:
        await end([publishing])

"""A worker's loop on a real queue, with the simulated engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import CollectorRegistry

from shared import keys
from shared.metrics import WorkerMetrics
from shared.queue import JobQueue
from shared.settings import Settings
from shared.subscription import Subscription
from shared.tasks import end
from tests.redis.conftest import LEASE_S, POOL, WORKER
from worker.engines.simulated.engine import SimulatedEngine
from worker.loop import Loop


def chat(max_tokens: int, **more: Any) -> bytes:
    """A request's body. With `ignore_eos` the answer is no shorter than that."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "simulated", "max_tokens": max_tokens, "messages": messages}
    return json.dumps(body | more).encode()


@contextlib.asynccontextmanager
async def serving(
    queue: JobQueue, redis_url: str, slots: int, worker: str = WORKER
) -> AsyncIterator[Loop]:
    """A worker's loop that claims and listens."""
    engine = SimulatedEngine(Settings(sim_max_num_seqs=slots, sim_step_ms=1.0))
    await engine.start()
    loop = Loop(
        queue,
        redis_url,
        engine,
        WorkerMetrics(CollectorRegistry()),
        pool=POOL,
        worker_id=worker,
        lease_s=LEASE_S,
        kv_high_watermark=0.95,
    )
    # By name, so that a test may put another one in its place.
    control = Subscription(redis_url, keys.control_channel(worker), lambda data: loop.hear(data))
    tasks = [asyncio.create_task(each.run()) for each in (control, loop, loop.publisher)]
    try:
        yield loop
    finally:
        await end(tasks)
        engine.close()

"""A worker's loop on a real queue, with the simulated engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any

from prometheus_client import CollectorRegistry

from shared.platform.metrics.worker import WorkerMetrics
from shared.platform.tasks import end
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.subscription import Subscription
from tests.harness.settings import Settings
from tests.redis.conftest import LEASE_S, POOL, WORKER
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership
from worker.engines.simulated.engine import SimulatedEngine


def chat(max_tokens: int, **more: Any) -> bytes:
    """A request's body. With `ignore_eos` the answer has exactly `max_tokens` tokens."""
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "simulated", "max_tokens": max_tokens, "messages": messages}
    return json.dumps(body | more).encode()


@contextlib.asynccontextmanager
async def serving(
    queue: JobQueue, slots: int, worker: str = WORKER, step_ms: float = 1.0
) -> AsyncIterator[WorkerLoop]:
    """A loop that claims jobs and is subscribed to its control channel."""
    engine = SimulatedEngine(Settings(sim_max_num_seqs=slots, sim_step_ms=step_ms))
    await engine.start()
    loop = WorkerLoop(
        Membership(queue, POOL, worker, LEASE_S),
        engine,
        WorkerMetrics(CollectorRegistry()),
        kv_high_watermark=0.95,
    )
    # Looked up at each message, so that a test may replace it.
    controls = [
        Subscription(
            queue.servers,
            shards[0],
            keys.control_channel(worker),
            lambda data: loop.control.on_message(data),
            lambda: loop.control.on_reconnect(),
        )
        for shards in queue.servers.groups
    ]
    tasks = [asyncio.create_task(each.run()) for each in (*controls, loop, loop.publisher)]
    try:
        yield loop
    finally:
        await end(tasks)
        engine.close()

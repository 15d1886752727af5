"""A worker whose answers contain the time at which it claimed the job.

`python -m load_tests.job_queue.claiming_worker REDIS_URL POOL`. It claims with the real worker's
executor. Its engine answers each request at once with two times of the machine's monotonic clock:
`{"claimed_s": ..., "engine_s": ...}`, the claim and the call of the engine.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Callable, Mapping

import uvloop
from prometheus_client import CollectorRegistry
from starlette.types import Receive, Scope, Send

from shared.platform.metrics import WorkerMetrics
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.servers import Servers
from shared.store.redis.subscription import Subscription
from worker.core.executor import Executor
from worker.core.job_run import JobRun
from worker.engines.interface import Capacity, Load

_WORKER = "w-timestamps"


class TimestampEngine:
    """An engine (`worker.engines.interface.Engine`) that answers with timestamps."""

    kind = "timestamps"
    capacity = Capacity(max_num_seqs=64, kv_cache_tokens=1 << 20, max_model_len=8192)
    dead = False
    on_step: Callable[[], None] = staticmethod(lambda: None)
    runs: Mapping[str, JobRun]
    """The executor's runs by job id."""

    async def start(self) -> None:
        """Nothing to start."""

    def load(self) -> Load:
        """Report an idle engine."""
        return Load(unfinished=0, kv_usage=0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer with the two times."""
        engine_s = time.monotonic()
        job_id = dict(scope["headers"])[b"x-request-id"].decode()
        times = {"claimed_s": self.runs[job_id].started, "engine_s": engine_s}
        body = json.dumps(times).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def close(self) -> None:
        """Nothing to close."""


async def _run(url: str, pool: str) -> None:
    engine = TimestampEngine()
    executor = Executor(
        JobQueue(Servers(url), shards=1),
        [url],
        engine,
        WorkerMetrics(CollectorRegistry()),
        pool=pool,
        worker_id=_WORKER,
        lease_s=60.0,
        kv_high_watermark=0.95,
    )
    engine.runs = executor.runs
    control = Subscription(
        url,
        keys.control_channel(_WORKER),
        executor.control.on_message,
        executor.control.on_reconnect,
    )
    await asyncio.gather(executor.run(), executor.publisher.run(), control.run())


if __name__ == "__main__":
    uvloop.run(_run(*sys.argv[1:]))

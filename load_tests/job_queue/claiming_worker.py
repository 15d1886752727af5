"""A worker that tells when it got a job. `python -m load_tests.job_queue.claiming_worker REDIS_URL POOL`

Claiming and waiting are the product's own loop; the engine behind it answers each request at once,
with the times at which the worker had the job and the engine its request: `{"claimed_s": ...,
"engine_s": ...}`, on the machine's monotonic clock.
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
from shared.platform.servers import Servers
from shared.platform.subscription import Subscription
from shared.protocol import keys
from shared.queue.job_queue import JobQueue
from worker.engines.protocol import Capacity, Load
from worker.run.executor import Executor
from worker.run.job_run import JobRun

_WORKER = "w-clock"


class Clock:
    """Implements `worker.engines.protocol.Engine`."""

    kind = "clock"
    capacity = Capacity(max_num_seqs=64, kv_cache_tokens=1 << 20, max_model_len=8192)
    dead = False
    on_step: Callable[[], None] = staticmethod(lambda: None)
    runs: Mapping[str, JobRun]
    """The loop's."""

    async def start(self) -> None: ...

    def load(self) -> Load:
        return Load(unfinished=0, kv_usage=0.0)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        engine_s = time.monotonic()
        job_id = dict(scope["headers"])[b"x-request-id"].decode()
        times = {"claimed_s": self.runs[job_id].started, "engine_s": engine_s}
        body = json.dumps(times).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def close(self) -> None: ...


async def _run(url: str, pool: str) -> None:
    clock = Clock()
    loop = Executor(
        JobQueue(Servers(url), shards=1),
        [url],
        clock,
        WorkerMetrics(CollectorRegistry()),
        pool=pool,
        worker_id=_WORKER,
        lease_s=60.0,
        kv_high_watermark=0.95,
    )
    clock.runs = loop.runs
    control = Subscription(
        url, keys.control_channel(_WORKER), loop.on_control_message, loop.on_reconnect
    )
    await asyncio.gather(loop.run(), loop.publisher.run(), control.run())


if __name__ == "__main__":
    uvloop.run(_run(*sys.argv[1:]))

"""A gateway process, and a worker in this process that serves the run's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from tests.e2e.processes import Process, Stack
from tests.e2e.shared_engine import SharedEngine
from tests.redis_server import RedisServer
from tests.settings import Settings
from tests.waiting import eventually
from worker.core.lifecycle import Worker
from worker.engines.interface import Engine


@asynccontextmanager
async def vllm_fleet(
    engine: Engine, server: RedisServer, folder: Path, slots: int = 0
) -> AsyncIterator[Process]:
    """The gateway, once it has the engine's model. `slots`: of the worker; 0: the engine's."""
    with server.client() as client:
        client.flushall()
    settings = Settings(redis_url=server.url, worker_port=0)
    shared: Any = SharedEngine(engine, slots)
    worker = Worker(settings, settings.described.own, shared, CollectorRegistry())
    running = asyncio.create_task(worker.run())
    stack = Stack(server.url, folder)
    gateway = await asyncio.to_thread(stack.gateway, lease_s=settings.lease_s)
    async with httpx.AsyncClient(base_url=gateway.url) as api:

        async def served() -> bool:
            return bool((await api.get("/v1/models")).json()["data"])

        await eventually(served, "the model is known")
    yield gateway
    worker.stop()
    assert await running == 0
    await asyncio.to_thread(stack.close)

"""A gateway process, and a worker in this process that serves the run's engine."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
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


class SharedEngine:
    """Passes all calls on to an engine, but does not start or close it. It may have fewer slots."""

    def __init__(self, engine: Engine, slots: int = 0) -> None:
        capacity = engine.capacity
        slots = slots or capacity.max_num_seqs
        object.__setattr__(self, "_engine", engine)
        object.__setattr__(self, "capacity", replace(capacity, max_num_seqs=slots))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine, name, value)

    async def start(self) -> None:
        """Do nothing: the engine is already started."""

    async def __call__(self, *arguments: Any) -> None:
        await self._engine(*arguments)

    def close(self) -> None:
        """Leave the engine open; only remove the worker's callback."""
        self._engine.on_step = lambda: None

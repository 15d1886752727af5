"""A gateway whose background task ends, or whose Redis holds malformed values."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from redis import Redis

from gateway.app import create_app
from gateway.core import fleet_view
from gateway.core.fleet_view import FleetView
from gateway.core.relay import Relay
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.health import Health
from shared.store.queue import Queue
from shared.store.upkeep import Upkeep
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import open_queue
from tests.store.test_registry import INFO


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """Of the Redis that the gateway of a test has."""
    async with open_queue(redis_url) as queue:
        yield queue


NOT_UTF8 = b"\xff\xfe"


@contextlib.asynccontextmanager
async def serving(redis_server: RedisServer) -> AsyncIterator[httpx.AsyncClient]:
    """A gateway in this process."""
    app = create_app(Settings(redis_url=redis_server.url, access_log=False))
    fastapi = app.fastapi
    async with (
        fastapi.router.lifespan_context(fastapi),
        httpx.AsyncClient(
            transport=httpx.ASGITransport(app),  # type: ignore[arg-type]
            base_url="http://localhost",
        ) as client,
    ):
        yield client


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (Relay, "relay"),
        (FleetView, "fleet view"),
        (Upkeep, "upkeep"),
        (Health, "health"),
    ],
)
async def test_an_ended_background_task_is_shown_by_name(
    store: Redis,
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    owner: Any,
    name: str,
) -> None:
    async def fails(self: Any) -> None:
        raise ValueError("broken")

    async def returns_at_once(self: Any) -> None:
        """The relay never connects if its task has ended."""

    monkeypatch.setattr(owner, "run", fails)
    monkeypatch.setattr(Relay, "connected", returns_at_once)
    async with serving(redis_server) as client:
        ready = await client.get("/readyz")
        assert ready.status_code == 503
        assert ready.json()["status"] == "not ready"
        ended = f"tasks: background task {name} has ended: ValueError('broken')"
        assert ended in ready.json()["missing"]
        assert (await client.get("/healthz")).status_code == 503
        assert (await client.get("/health")).status_code == 503
        scraped = (await client.get("/metrics")).text
    assert 'flotilla_gateway_ready{check="tasks"} 0.0' in scraped
    assert f"background task {name} has ended: ValueError('broken')" in caplog.text


async def test_a_gateway_with_malformed_values_in_redis_serves(
    queue: Queue, store: Redis, redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "_REFRESH_S", 0.01)
    registry = Registry(queue.servers.primary)
    await registry.register_models("pool", [{"id": "m"}])
    await registry.announce(INFO)
    store.hset(keys.MODELS, mapping={"bad": "{", NOT_UTF8: "{}"})
    store.sadd(keys.WORKERS, "w-2", NOT_UTF8)
    store.hset(keys.worker("w-2"), mapping={"slots": '"many"'})
    store.hset(keys.first(keys.DOCUMENTS, "scale"), "pool", NOT_UTF8)
    async with serving(redis_server) as client:

        async def ready() -> bool:
            return bool((await client.get("/readyz")).json()["status"] == "ready")

        await eventually(ready, "the gateway is ready")
        assert (await client.get("/readyz")).json()["models"] == {"m": "ok"}
        models = (await client.get("/v1/models")).json()["data"]
        assert [model["id"] for model in models] == ["m"]
        assert (await client.get("/admin/autoscale")).json()["data"] == []
        scraped = (await client.get("/metrics")).text
    for kind in ("worker", "model", "scale"):
        (line,) = (
            line
            for line in scraped.splitlines()
            if line.startswith(f'flotilla_malformed_values_total{{kind="{kind}"}}')
        )
        assert float(line.split()[-1]) > 0


async def test_without_workers_calls_are_queued(store: Redis, redis_server: RedisServer) -> None:
    async with serving(redis_server) as client:
        ready = await client.get("/readyz")
        assert ready.status_code == 200
        assert ready.json()["status"] == "no worker"
        assert ready.json()["missing"] == ["no worker has registered a model yet"]

"""The engine's dashboard against the metrics of vLLM, which runs in the test's process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import pytest
import pytest_asyncio
from prometheus_client import REGISTRY, CollectorRegistry
from prometheus_client.registry import Collector

from tests.e2e.shared_engine import SharedEngine
from tests.harness.dashboards import JOBS, ObservedFleet, observed_fleet, panels, watched
from tests.harness.prometheus import MISSING, Prometheus, installed
from tests.harness.servers import free_port
from tests.harness.settings import Settings
from tests.harness.waiting import wait_for
from worker.core.lifecycle import Worker
from worker.demo import MODEL_NAME
from worker.engines.interface import Engine


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ObservedFleet]:
    with observed_fleet(tmp_path_factory.mktemp("fleet")) as fleet:
        yield fleet


@pytest.fixture(scope="module")
def prometheus(
    fleet: ObservedFleet, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Prometheus]:
    if not installed():
        pytest.skip(MISSING)
    with watched(fleet, tmp_path_factory.mktemp("prometheus")) as prometheus:
        yield prometheus


class Lent(CollectorRegistry):
    """The process' registry, which a worker's health server shows, for one worker and a while."""

    def __init__(self) -> None:
        super().__init__()
        self._lent: list[Collector] = []

    def register(self, collector: Collector) -> None:
        REGISTRY.register(collector)
        self._lent.append(collector)

    def close(self) -> None:
        for collector in self._lent:
            REGISTRY.unregister(collector)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def vllm_url(vllm_engine: Engine, fleet: ObservedFleet) -> AsyncIterator[str]:
    """Where a worker with the run's engine shows vLLM's metrics and ours."""
    port = free_port()
    settings = Settings(redis_url=fleet.redis_url, worker_port=port)
    registry = Lent()
    engine: Any = SharedEngine(vllm_engine)
    worker = Worker(settings, settings.described.own, engine, registry)
    running = asyncio.create_task(worker.run())
    try:
        await asyncio.to_thread(
            wait_for, lambda: fleet.gateway.has("flotilla_workers", pool=MODEL_NAME), "it serves"
        )
        yield f"http://127.0.0.1:{port}"
    finally:
        worker.stop()
        assert await running == 0
        registry.close()


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_every_panel_of_the_engine_names_what_vllm_exports(
    fleet: ObservedFleet, vllm_url: str
) -> None:
    await asyncio.to_thread(fleet.use, MODEL_NAME)
    exports = fleet.exports()
    text = await asyncio.to_thread(lambda: httpx.get(f"{vllm_url}/metrics").text)
    assert exports.problems("vllm:num_requests_running")
    exports.add_scrape(text, job=JOBS["worker"], instance=vllm_url.removeprefix("http://"))
    assert [p for _, expr in panels("engine") for p in exports.problems(expr)] == []


@pytest.mark.vllm
@pytest.mark.asyncio(loop_scope="session")
async def test_every_panel_of_the_engine_has_data(
    fleet: ObservedFleet, vllm_url: str, prometheus: Prometheus
) -> None:
    def all_have_data() -> None:
        prometheus.watch(JOBS["worker"], [fleet.worker.url, vllm_url])
        wait_for(lambda: sum(prometheus.up().values()) == 3, "all targets are up")
        fleet.use(MODEL_NAME)
        instance = vllm_url.removeprefix("http://")
        for title, expr in panels("engine"):
            expr = expr.replace('instance=~".*"', f'instance="{instance}"')
            assert instance in expr
            wait_for(lambda expr=expr: has_data(expr), f"{title} has data: {expr}")

    def has_data(expr: str) -> bool:
        if prometheus.values(expr):
            return True
        fleet.use(MODEL_NAME)  # rates are of the last minute, which may have passed since
        return False

    await asyncio.to_thread(all_have_data)

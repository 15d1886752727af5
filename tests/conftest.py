"""Shared fixtures: Redis servers and engines; and how a parallel run distributes tests."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from shared.platform.settings import Settings
from tests.redis_server import RedisServer
from worker.engines.protocol import Engine

TESTS = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Distribute tests over processes (`-n 2 --dist loadgroup`) file by file, slow ones first.

    All tests of one file share a process, as they share its fixtures. Those that need real vLLM
    share one too, so that it is started once per run.
    """
    if config.getoption("dist", "no") == "no":
        return
    for item in items:
        group = "vllm" if item.get_closest_marker("vllm") else item.path.stem
        item.add_marker(pytest.mark.xdist_group(group))
    items.sort(key=_start_late)


def _start_late(item: pytest.Item) -> int:
    if item.get_closest_marker("vllm"):
        return 0
    folder = item.path.parent.relative_to(TESTS).parts
    return 1 if folder and folder[0] == "e2e" else 2 if folder and folder[0] != "unit" else 3


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Reset our loggers: libraries that an earlier test has loaded may have disabled them."""
    logging.getLogger("flotilla").setLevel(logging.WARNING)
    logging.getLogger("flotilla").propagate = True
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("flotilla") and isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for all tests of this process."""
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """The shared Redis, emptied."""
    with redis_server.client() as client:
        client.flushall()
    return redis_server.url


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis for one test, which may kill it."""
    server = RedisServer(tmp_path)
    server.start()
    yield server
    server.stop()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def simulated_engine() -> AsyncIterator[Engine]:
    """A started simulated engine."""
    from worker.engines.simulated.engine import SimulatedEngine

    engine = SimulatedEngine(Settings(sim_step_ms=1, sim_step_us_per_seq=0))
    await engine.start()
    yield engine
    engine.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def vllm_engine() -> AsyncIterator[Engine]:
    """Real vLLM with the demo model, in this process. Tests that use it are marked `vllm`."""
    from worker.engines.vllm.engine import VllmEngine

    engine = VllmEngine(Settings())
    await engine.start()
    yield engine
    engine.close()


@pytest.fixture(scope="session", params=["simulated", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn: the test runs once with each."""
    started: Engine = request.getfixturevalue(f"{request.param}_engine")
    return started

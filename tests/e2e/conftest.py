"""Engines in the test's own process."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from tests.e2e.shared_engine import close
from tests.harness.settings import Settings
from worker.engines.interface import Engine


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
    """Real vLLM with the demo model, in this process. Tests that use it are marked `vllm`.

    It has float32, with which an answer does not depend on what else is in the batch.
    """
    from worker.engines.vllm.engine import VllmEngine

    settings = Settings(engine_args="--dtype float32")
    engine = VllmEngine(settings, settings.described.own)
    await engine.start()
    yield engine
    await close(engine)


@pytest.fixture(scope="session", params=["simulated", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn: the test runs once with each."""
    started: Engine = request.getfixturevalue(f"{request.param}_engine")
    return started

"""Shared fixtures: Redis servers and engines; and how a parallel run distributes tests."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import re
import tempfile
from collections.abc import AsyncIterator, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import certifi
import hypothesis
import pytest
import pytest_asyncio
from xdist.scheduler import LoadScopeScheduling

from shared.store.redis import keys
from shared.store.redis.cluster import shard_tags
from tests.harness.fleet import Stack
from tests.harness.servers import ON_CLUSTER, RedisServer, fleet_on_one_node
from tests.harness.settings import ROOT, Settings
from worker.engines.interface import Engine

# Before any test imports torch: threads of vLLM that spin would take the cores from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def _one_certificate() -> Path:
    """A file with the first certificate that httpx trusts. No test calls a server that needs
    another, nor does any process that a test starts: they inherit the variable."""
    number, path = tempfile.mkstemp(prefix="flotilla-tests-", suffix=".pem")
    atexit.register(os.unlink, path)
    with os.fdopen(number, "w") as file:
        file.write(certifi.contents().split("-----END", 1)[0] + "-----END CERTIFICATE-----\n")
    return Path(path)


# `httpx.get` makes a client for each call, which reads all certificates in 20 ms: a test that
# polled did little else.
os.environ["SSL_CERT_FILE"] = str(_one_certificate())

# A loaded machine is no failure.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """For `--dist loadfile`: tests of one file share a process, as they share its fixtures.

    Files that need real vLLM share one too, so that it is started once per run.
    """
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


class _ByFile(LoadScopeScheduling):
    # Not by the marker `xdist_group`: pytest-xdist 3.8 can't add it to the node ids of pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return "vllm" if _needs_vllm(path) else path


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run, start with the files that take longest."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_start_late)


def _start_late(item: pytest.Item) -> int:
    path = item.nodeid.partition("::")[0]
    folder = path.split("/")[1]
    return 0 if _needs_vllm(path) else 1 if folder == "e2e" else 3 if folder == "unit" else 2


@cache
def _needs_vllm(path: str) -> bool:
    """Whether a test in this file (below the project's folder) needs real vLLM."""
    return bool(re.search(r"vllm_engine|mark\.vllm|engine: Engine", (ROOT / path).read_text()))


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Reset our loggers: libraries that an earlier test has loaded may have disabled them."""
    logging.getLogger("flotilla").setLevel(logging.WARNING)
    logging.getLogger("flotilla").propagate = True
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("flotilla") and isinstance(logger, logging.Logger):
            logger.disabled = False


# Test files have constants of keys.
keys.use_tags(shard_tags(1) if ON_CLUSTER else [])


@pytest.fixture(autouse=True)
def tags_of_shards() -> None:
    """A test finds the hash tags of one shard, whichever fleet the test before has had."""
    keys.use_tags(shard_tags(1) if ON_CLUSTER else [])


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """One Redis for all tests of this process. With TEST_REDIS=cluster it is a node of a cluster,
    which has all slots of a fleet."""
    folder = tmp_path_factory.mktemp("redis")
    if ON_CLUSTER:
        with contextlib.closing(fleet_on_one_node(folder)) as cluster:
            cluster.start()
            cluster.masters[0].url = cluster.url
            yield cluster.masters[0]
        return
    server = RedisServer(folder)
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


@pytest.fixture
def stack(redis_url: str, tmp_path: Path) -> Iterator[Stack]:
    """A fleet of processes for one test; only Redis runs in it yet."""
    stack = Stack(redis_url, tmp_path)
    yield stack
    stack.close()


@pytest.fixture(scope="module")
def module_stack(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """A fleet of processes for the tests of one file, on the shared Redis, emptied."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    yield stack
    stack.close()


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

    It has the logits processor of forced replay too, so that both ways to continue are tested, and
    float32, with which an answer does not depend on what else is in the batch.
    """
    from worker.engines.vllm.engine import VllmEngine

    processor = "worker.engines.vllm.forced_replay:ForcedReplay"
    settings = Settings(engine_args=f"--dtype float32 --logits-processors {processor}")
    engine = VllmEngine(settings, settings.described.own)
    await engine.start()
    yield engine
    engine.close()


@pytest.fixture(scope="session", params=["simulated", pytest.param("vllm", marks=pytest.mark.vllm)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each engine in turn: the test runs once with each."""
    started: Engine = request.getfixturevalue(f"{request.param}_engine")
    return started

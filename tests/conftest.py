"""Shared fixtures: Redis servers and fleets; and how a parallel run distributes tests."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from xdist.scheduler import LoadScopeScheduling

from shared.store import keys
from shared.store.servers import shard_tags
from tests.harness.fleet import Stack
from tests.harness.servers import KINDS, RedisServer, redis_of_kind

# Before any test imports torch: threads of vLLM that spin would take the cores from each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A loaded machine is no failure.
hypothesis.settings.register_profile(
    "untimed", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("untimed")

_WITH_VLLM = (
    "tests/vllm/",
    "tests/api/test_vllm_main_path.py",
    "tests/e2e/responses/test_responses_continued.py",
    "tests/e2e/test_changed_context.py",
    "tests/e2e/test_continuation.py",
    "tests/e2e/test_engine_conformance.py",
    "tests/e2e/test_plain_streams.py",
)
"""What needs real vLLM; the files of e2e start it in the test's own process."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """The server that tests share, and how long random tests are."""
    parser.addoption("--redis", choices=KINDS, default="any", help="the Redis that tests share")
    parser.addoption("--seeds", type=int, help="how many seeds each random test plays")


def pytest_configure(config: pytest.Config) -> None:
    """Test files have constants of keys, so the tags are set before they are imported."""
    config.addinivalue_line("markers", "seeds(n): a random test, by default with the seeds below n")
    keys.use_tags(_tags(config))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The seeds of a random test."""
    if marker := metafunc.definition.get_closest_marker("seeds"):
        metafunc.parametrize("seed", range(metafunc.config.getoption("seeds") or marker.args[0]))


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling | None:
    """For `--dist loadfile`: tests of one file share a process, as they share its fixtures.

    Files that need real vLLM share one too: its engines are started once per run.
    """
    return _ByFile(config, log) if config.getoption("dist") == "loadfile" else None


class _ByFile(LoadScopeScheduling):
    # Not by the marker `xdist_group`: pytest-xdist 3.8 can't add it to the node ids of pytest 9.2.
    def _split_scope(self, nodeid: str) -> str:
        return "vllm" if nodeid.startswith(_WITH_VLLM) else nodeid.partition("::")[0]


_VLLM_TIMEOUT_S = 1800
"""The first test of a file may start an engine, which takes 15 s, and on a busy machine minutes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """In a parallel run, start with the files that take longest."""
    for item in items:
        if item.get_closest_marker("vllm"):
            item.add_marker(pytest.mark.timeout(_VLLM_TIMEOUT_S))
    if "PYTEST_XDIST_WORKER" in os.environ:
        items.sort(key=_start_late)


def _start_late(item: pytest.Item) -> int:
    folder = item.nodeid.split("/")[1]
    return 0 if item.nodeid.startswith(_WITH_VLLM) else {"unit": 3, "store": 2}.get(folder, 1)


@pytest.fixture(autouse=True)
def enabled_loggers() -> None:
    """Reset our loggers: libraries that an earlier test has loaded may have disabled them."""
    logging.getLogger("flotilla").setLevel(logging.WARNING)
    logging.getLogger("flotilla").propagate = True
    for name, logger in logging.root.manager.loggerDict.items():
        if name.startswith("flotilla") and isinstance(logger, logging.Logger):
            logger.disabled = False


@pytest.fixture(scope="session")
def anthropic() -> Any:
    """Anthropic's SDK. Its import takes two seconds, so no module that is collected does it."""
    return importlib.import_module("anthropic")


def _tags(config: pytest.Config) -> list[str]:
    return shard_tags(1) if config.getoption("redis") == "cluster" else []


@pytest.fixture(autouse=True)
def tags_of_shards(pytestconfig: pytest.Config) -> None:
    """A test finds the hash tags of one shard, whichever fleet the test before has had."""
    keys.use_tags(_tags(pytestconfig))


@pytest.fixture(scope="session")
def redis_server(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RedisServer]:
    """One Redis for all tests of this process, of the kind that the option --redis names."""
    with redis_of_kind(pytestconfig.getoption("redis"), tmp_path_factory.mktemp("redis")) as server:
        yield server


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

"""One suite for each kind of server that a store may have.

A kind is started when a test first needs it, once per process of the run, and emptied before each
test. All jobs of these tests are in shard 0.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest
from redis import Redis

from shared.store.redis.job_queue import JobQueue
from tests.harness.servers import RedisServer, SentinelGroup, embedded_binary, fleet_on_one_node
from tests.redis.conftest import (
    ChannelSubscriber,
    control_messages,
    gateway_messages,
    open_queue,
)

_NEVER_DOWN_MS = 60_000
"""A machine under load is no reason for a failover in these tests."""


class Kind(NamedTuple):
    """A server of one kind, and the URL that a fleet is configured with."""

    server: RedisServer
    """That holds shard 0; it is emptied before each test."""
    url: str


def _start(stack: contextlib.ExitStack, folder: Path, binary: str) -> RedisServer:
    folder.mkdir(exist_ok=True)
    server = RedisServer(folder, binary)
    server.start()
    stack.callback(server.stop)
    return server


def _redis_7(stack: contextlib.ExitStack, folder: Path) -> Kind:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("there is no redis-server in PATH")
    server = _start(stack, folder, binary)
    return Kind(server, server.url)


def _embedded(stack: contextlib.ExitStack, folder: Path) -> Kind:
    server = _start(stack, folder, embedded_binary())
    return Kind(server, server.url)


def _sentinel(stack: contextlib.ExitStack, folder: Path) -> Kind:
    group = SentinelGroup(folder, down_after_ms=_NEVER_DOWN_MS)
    stack.callback(group.close)
    group.start()
    return Kind(group.servers[0], group.url)


def _cluster(stack: contextlib.ExitStack, folder: Path) -> Kind:
    cluster = fleet_on_one_node(folder)
    stack.callback(cluster.close)
    cluster.start()
    return Kind(cluster.masters[0], cluster.url)


KINDS = {
    "redis-7": _redis_7,
    "valkey-9": _embedded,
    "sentinel": _sentinel,
    "cluster": _cluster,
}


@pytest.fixture(scope="session")
def start_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Kind]]:
    """Starts a kind of server, or returns the one that runs."""
    with contextlib.ExitStack() as stack:
        yield cache(lambda name: KINDS[name](stack, tmp_path_factory.mktemp(name)))


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, start_kind: Callable[[str], Kind]) -> Kind:
    """Each kind of server in turn, emptied."""
    kind = start_kind(request.param)
    with kind.server.client() as client:
        client.flushall()
    return kind


@pytest.fixture
async def queue(kind: Kind) -> AsyncIterator[JobQueue]:
    """The store under test."""
    async with open_queue(kind.url) as queue:
        yield queue


@pytest.fixture
def server(kind: Kind) -> Iterator[Redis]:
    """The server of shard 0, to let the time of a lease or a deadline pass."""
    with kind.server.client() as client:
        yield client


@pytest.fixture
def gateway(server: Redis, queue: JobQueue) -> Iterator[ChannelSubscriber]:
    """The gateway that `make_job` names."""
    with gateway_messages(server) as subscriber:
        yield subscriber


@pytest.fixture
def other_gateway(server: Redis, queue: JobQueue) -> Iterator[ChannelSubscriber]:
    """A second gateway, `gw-2`."""
    with gateway_messages(server, "gw-2") as subscriber:
        yield subscriber


@pytest.fixture
def control(server: Redis, queue: JobQueue) -> Iterator[ChannelSubscriber]:
    """The worker that `claim` names."""
    with control_messages(server) as subscriber:
        yield subscriber

"""One suite for each kind of server that a store may have.

A kind is started when a test first needs it, once per process of the run, and emptied before each
test. All jobs of these tests are in shard 0.
"""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from functools import cache
from pathlib import Path

import pytest
from redis import Redis

from shared.store.redis.job_queue import JobQueue
from tests.harness.servers import KINDS, RedisServer, redis_of_kind
from tests.redis.conftest import (
    ChannelSubscriber,
    control_messages,
    gateway_messages,
    open_queue,
)


@pytest.fixture(scope="session")
def start_kind(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RedisServer]]:
    """Starts a kind of server, or returns the one that runs."""
    with contextlib.ExitStack() as stack:
        yield cache(
            lambda name: stack.enter_context(redis_of_kind(name, tmp_path_factory.mktemp(name)))
        )


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest, start_kind: Callable[[str], RedisServer]) -> RedisServer:
    """Each kind of server in turn, which holds shard 0, emptied."""
    kind = start_kind(request.param)
    with kind.client() as client:
        client.flushall()
    return kind


@pytest.fixture
async def queue(kind: RedisServer) -> AsyncIterator[JobQueue]:
    """The store under test."""
    async with open_queue(kind.url) as queue:
        yield queue


@pytest.fixture
def server(kind: RedisServer) -> Iterator[Redis]:
    """The server of shard 0, to let the time of a lease or a deadline pass."""
    with kind.client() as client:
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


@pytest.fixture
def certificate(tmp_path: Path) -> Path:
    """Of 127.0.0.1, with its key beside it."""
    certificate, key = tmp_path / "node.crt", tmp_path / "node.key"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=node -keyout {key} "
        f"-out {certificate} -addext subjectAltName=IP:127.0.0.1".split(),
        check=True,
        capture_output=True,
    )
    return certificate

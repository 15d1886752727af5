"""These tests run on one kind of server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
from redis import Redis

from shared.store.queue import Queue
from tests.harness.servers import RedisServer
from tests.store.conftest import open_queue


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """A queue of one shard."""
    async with open_queue(redis_url) as queue:
        yield queue


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[Redis]:
    """A client that reads what Redis holds."""
    with redis_server.client() as client:
        yield client

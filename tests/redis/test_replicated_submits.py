"""FLOTILLA_WAIT_REPLICAS: a job counts as queued once a replica has it."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from shared.store.interface import StoreTimeout
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.replicated_submit import ReplicatedSubmits
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for
from tests.redis.conftest import make_job, open_queue


@pytest.fixture
def replica(own_redis: RedisServer, tmp_path: Path) -> Iterator[RedisServer]:
    folder = tmp_path / "replica"
    folder.mkdir()
    server = RedisServer(folder)
    server.options["replicaof"] = f"127.0.0.1 {own_redis.port}"
    server.start()

    def follows() -> bool:
        with server.client() as client:
            return bool(client.info("replication")["master_link_status"] == "up")

    wait_for(follows, "the replica has caught up")
    yield server
    server.kill()


@pytest.fixture
async def queue(own_redis: RedisServer) -> AsyncIterator[JobQueue]:
    async with open_queue(own_redis.url) as queue:
        queue.replicated = ReplicatedSubmits(queue.servers, 1)
        yield queue


async def test_a_job_that_a_replica_has_is_queued(queue: JobQueue, replica: RedisServer) -> None:
    job = make_job()
    assert queue.parse_submit([job], await queue.start_submit(0, [job], 10)) == [1]
    with replica.client() as client:
        assert client.exists(f"flotilla:{{0}}:job:{job.id}")


async def test_without_the_replica_the_call_fails_and_the_job_may_be_queued(
    queue: JobQueue, replica: RedisServer
) -> None:
    replica.signal(signal.SIGSTOP)
    job = make_job()
    with pytest.raises(StoreTimeout, match=r"0 of 1 replicas .* it may be queued"):
        await queue.start_submit(0, [job], 10)
    assert await queue.get(job.id) is not None
    replica.signal(signal.SIGCONT)
    other = make_job()
    assert queue.parse_submit([other], await queue.start_submit(0, [other], 10)) == [2]

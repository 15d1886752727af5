"""On a cluster a worker's jobs are of its home shards as long as these have any."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from shared.job.job import shard_in
from shared.store.servers import shard_tags
from tests.api.test_placement import CACHE, Conversation, cached
from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import WARM_ONLY
from tests.harness.servers import RedisCluster, call, fleet_on_one_node
from tests.harness.waiting import wait_for

POOL = "simulated"
ONE_SLOT = {"sim_step_ms": 25, "sim_step_us_per_seq": 0, "sim_max_num_seqs": 1}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RedisCluster]:
    cluster = fleet_on_one_node(tmp_path / "cluster")
    with contextlib.closing(cluster):
        cluster.start()
        yield cluster


@pytest.fixture
def stack(cluster: RedisCluster, tmp_path: Path) -> Iterator[Stack]:
    stack = Stack(cluster.url, tmp_path)
    with contextlib.closing(stack):
        yield stack


def homes(cluster: RedisCluster, shards: int) -> dict[str, list[int]]:
    """Worker -> the shards where it is idle with room."""
    found: dict[str, list[int]] = {}
    for shard, tag in enumerate(shard_tags(shards)):
        name = f"flotilla:{{{tag}}}:idle:{POOL}"
        there: list[bytes] = call(cluster.masters[0], "ZRANGE", name, "1", "+inf", "BYSCORE")
        for each in there:
            found.setdefault(each.decode(), []).append(shard)
    return found


def settled(cluster: RedisCluster, workers: int, shards: int) -> bool:
    """Whether each shard is the home of one worker, and the workers have about as many each."""
    found = homes(cluster, shards)
    counts = [len(own) for own in found.values()]
    every = sorted(shard for own in found.values() for shard in own)
    return len(found) == workers and every == [*range(shards)] and max(counts) - min(counts) <= 1


def submit(gateway: Process, text: str, tokens: int) -> str:
    request = {"endpoint": CHAT, "body": chat(text, max_tokens=tokens, ignore_eos=True)}
    job_id: str = http.post(f"{gateway.url}/jobs", json=request).raise_for_status().json()["id"]
    return job_id


def state(gateway: Process, job_id: str) -> str:
    found: str = http.get(f"{gateway.url}/jobs/{job_id}").raise_for_status().json()["state"]
    return found


def at_home(cluster: RedisCluster, gateway: Process) -> bool:
    """Whether a worker whose home is the job's shard has answered a new one."""
    job_id = submit(gateway, "a prompt", 1)
    wait_for(lambda: state(gateway, job_id) == "completed", "it is answered")
    worker = http.get(f"{gateway.url}/jobs/{job_id}").json()["worker"]
    return shard_in(job_id) in homes(cluster, 4)[worker]


def test_homes_follow_the_workers(cluster: RedisCluster, stack: Stack) -> None:
    gateway = stack.gateway(shards=4)
    workers = [stack.worker(shards=4)]
    wait_for(lambda: settled(cluster, 1, 4), "one worker has all shards")
    workers += [stack.worker(shards=4) for _ in range(2)]
    wait_for(lambda: settled(cluster, 3, 4), "three workers share four shards")
    wait_for(lambda: all(at_home(cluster, gateway) for _ in range(12)), "jobs run at their homes")
    workers[0].terminate()
    wait_for(lambda: settled(cluster, 2, 4), "its shards are the others'")
    workers[1].kill()
    wait_for(lambda: settled(cluster, 1, 4), "all are the last one's")


def test_an_idle_worker_takes_jobs_of_a_shard_whose_own_is_full(
    cluster: RedisCluster, stack: Stack
) -> None:
    gateway = stack.gateway(shards=2)
    for _ in range(2):
        stack.worker(shards=2, **ONE_SLOT)
    wait_for(lambda: settled(cluster, 2, 2), "each has a shard")
    long = submit(gateway, "a long answer", 8000)
    wait_for(lambda: state(gateway, long) == "in_progress", "one worker is full")
    short = [submit(gateway, f"prompt {n}", 1) for n in range(12)]
    assert shard_in(long) in map(shard_in, short)
    wait_for(lambda: {state(gateway, each) for each in short} == {"completed"}, "all are answered")
    assert state(gateway, long) == "in_progress"


def test_a_conversation_has_one_shard_and_worker(cluster: RedisCluster, stack: Stack) -> None:
    gateway = stack.gateway(shards=4)
    for _ in range(3):
        stack.worker(shards=4, **CACHE, **WARM_ONLY)
    wait_for(lambda: settled(cluster, 3, 4), "the shards have workers")
    talks = [Conversation(gateway, f"conversation {n}") for n in range(8)]
    for turn in range(4):
        # In turns: where a prompt is cached is known a little after its answer.
        parts = [cached(talk.turn(2)) for talk in talks]
        assert not turn or min(parts) > 0.4
    assert all(len(set(talk.workers)) == 1 for talk in talks)

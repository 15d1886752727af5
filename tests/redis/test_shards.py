"""Shards: all keys of a job are in one slot of a cluster, and no script uses another."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from shared.job.job import new_job_id, shard_of
from shared.job.lanes import CLIENT_LANES
from shared.job.replies import Fenced
from shared.store.redis import keys
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scripts.emit import make_step
from tests.harness.servers import one_redis_only
from tests.redis.conftest import (
    MAX_ATTEMPTS,
    POOL,
    TENANT,
    WORKER,
    answer,
    claim,
    emit,
    expire_lease,
    finish,
    log_entries,
    log_flush,
    make_job,
    open_queue,
    output,
    pending,
    renew,
    submit,
    submit_one,
)

SHARDS = 4


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[JobQueue]:
    async with open_queue(redis_url, shards=SHARDS) as queue:
        yield queue


def tags(text: str) -> set[str]:
    return set(re.findall(r"flotilla:\{([\w-]+)\}", text))


def tag_of(shard: int) -> str:
    """On a cluster it lies in the shard's share of the slots."""
    (tag,) = tags(keys.base(shard))
    return tag


async def live(queue: JobQueue, store: Redis, shard: int) -> list[str]:
    """Run every operation on jobs of one shard; returns the jobs' ids."""

    def job_id() -> str:
        return new_job_id(1).replace("job_000", f"job_{shard:03x}")

    ids = [
        (await submit(queue, id=job_id(), lane=lane, deadline_s=60)).id for lane in CLIENT_LANES * 2
    ]
    done, cancelled, silent, released, expired, poison = await claim(queue, shard=shard)
    await queue.watch(done.id, "gw-2", follow=True)
    step = [output(done, 1), output(expired, 1), output(cancelled, 1)]
    assert await emit(queue, step) == {}
    assert await emit(queue, step, log_flushes=[log_flush(step[0], 1)], again=True) == {}
    assert [entry.seq for entry in await log_entries(queue, done.id, 0)] == [1]
    assert await renew(queue, WORKER, [done, cancelled]) == {}
    assert await finish(queue, done, 2, answer()) == "ok"
    await queue.cancel(cancelled.id, TENANT)
    expire_lease(store, silent)
    await queue.reap(shard, 5.0)
    await queue.release([released], "drained", blame=False)
    store.zadd(f"{keys.base(shard)}{keys.DEADLINES}", {expired.id: 1})
    await queue.expire(shard, 10)
    for _ in range(MAX_ATTEMPTS):
        await queue.release([poison], "engine_died", blame=True)
        poison = next((j for j in await claim(queue, shard=shard) if j.id == poison.id), poison)
    await queue.reject_unreceived(POOL, WORKER, [], 0.0)
    await queue.sweep(shard)
    await queue.check(shard)
    return ids


async def test_all_keys_of_a_job_share_one_tag(queue: JobQueue, store: Redis) -> None:
    for shard in range(SHARDS):
        for job_id in await live(queue, store, shard):
            assert shard_of(job_id) == shard
            names = [key.decode() for key in store.keys(f"*{job_id}")]
            assert names
            assert {frozenset(tags(name)) for name in names} == {frozenset({tag_of(shard)})}


async def test_every_script_touches_one_tag(queue: JobQueue, store: Redis) -> None:
    await queue.scripts(0).load()
    commands: list[str] = []
    with store.monitor() as monitor:
        for shard in range(SHARDS):
            await live(queue, store, shard)
        store.echo("that is all")
        for event in monitor.listen():
            commands.append(f"{event['client_type']} {event['command']}")
            if "that is all" in event["command"]:
                break
    scripts = 0
    for command in commands:
        if re.search(" (FCALL|EVALSHA) ", command.upper()):
            scripts += 1
            (tag,) = tags(command)
        elif command.startswith("lua"):
            assert tags(command) <= {tag}, command
    assert scripts >= SHARDS * 20


async def test_a_lost_job_invalidates_the_fence_of_its_shard_only(
    queue: JobQueue, store: Redis
) -> None:
    held = []
    for shard in range(SHARDS):
        await submit(queue, id=f"job_{shard:03x}{0:024x}")
        held += await claim(queue, shard=shard)
    assert await renew(queue, WORKER, held) == {}
    fence_tokens = [store.get(keys.fence(shard, WORKER)).decode() for shard in range(SHARDS)]
    assert len(set(fence_tokens)) == SHARDS
    await queue.cancel(held[1].id, TENANT)
    for shard, job in enumerate(held):
        if shard == 1:
            with pytest.raises(Fenced):
                await queue.emit(shard, WORKER, fence_tokens[shard], make_step([output(job, 1)]))
        else:
            step = make_step([output(job, 1)])
            assert await queue.emit(shard, WORKER, fence_tokens[shard], step) == {}
        assert store.exists(keys.steps(shard, WORKER)) == (shard != 1)
        entries = await log_entries(queue, job.id, 0)
        assert [entry.end for entry in entries] == ["cancelled" if shard == 1 else ""]


async def test_a_script_called_for_one_shard_changes_no_other(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await submit(queue, id=f"job_{shard:03x}{0:024x}") for shard in range(SHARDS)]
    others = [key for key in store.keys("*") if tag_of(2) not in tags(key.decode())]
    before = {key: store.dump(key) for key in others}
    (leased,) = await claim(queue, shard=2)
    assert leased.id == jobs[2].id
    await finish(queue, leased, 1, answer())
    keys_now = [key for key in store.keys("*") if tag_of(2) not in tags(key.decode())]
    assert {key: store.dump(key) for key in keys_now} == before


async def test_one_call_renews_and_releases_jobs_of_all_shards(
    queue: JobQueue, store: Redis
) -> None:
    held = []
    for shard in range(SHARDS):
        await submit(queue, id=f"job_{shard:03x}{0:024x}")
        held += await claim(queue, shard=shard)
    assert await renew(queue, WORKER, held) == {}
    assert await queue.release(held, "drained", blame=False) == {j.id: "queued" for j in held}
    assert [pending(store, shard) for shard in range(SHARDS)] == [0] * SHARDS


@one_redis_only
async def test_a_wake_up_in_any_shard_wakes_a_worker(queue: JobQueue, redis_url: str) -> None:
    for shard in range(SHARDS):
        await submit_one(queue, make_job(id=f"job_{shard:03x}{0:024x}"), 10)
        await queue.servers.primary.blpop(
            [keys.wake_ups(n, "pool") for n in range(SHARDS)], timeout=4.0
        )
        assert await queue.servers.primary.llen(keys.wake_ups(shard, "pool")) == 0


@pytest.mark.parametrize("shards", [1, 4, 4096])
def test_new_ids_name_a_shard_that_is_there(shards: int) -> None:
    named = {shard_of(new_job_id(shards)) for _ in range(200)}
    assert all(shard is not None and 0 <= shard < shards for shard in named)
    assert len(named) > min(shards, 3) - 1

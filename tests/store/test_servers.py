"""The scripts on servers that are full, have lost them, or allow less; and on a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from redis import Redis

from shared.store import keys
from shared.store.errors import StoreUnavailable, StoreUnwritable
from shared.store.queue import Emitted, Queue, Step
from shared.store.servers import Servers
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.store.conftest import TENANT, Case, beat, make_job, open_case


@pytest.fixture
async def alone(own_kind: RedisServer) -> AsyncIterator[Case]:
    """A case on one Redis, which may be filled."""
    async with open_case(own_kind) as case:
        yield case
        case.server.config_set("maxmemory", 0)


async def test_a_full_redis_takes_no_new_job(alone: Case) -> None:
    await alone.submit()
    alone.server.config_set("maxmemory", 1)
    small, large = make_job(), make_job(body=b"x" * 70_000)
    for refused in (small, large):
        with pytest.raises(StoreUnwritable):
            await alone.submit_all([refused])
    alone.server.config_set("maxmemory", 0)
    assert await alone.state(small) == "gone"
    assert await alone.submit_all([small]) == [2]


async def test_jobs_of_a_full_redis_go_on_and_end(alone: Case) -> None:
    jobs = [await alone.submit(deadline_s=9.0) for _ in range(5)]
    worker, gateway = alone.worker(), alone.gateway("gw-2")
    done, cancelled, given_back = await worker.claim(3)
    alone.server.config_set("maxmemory", 1)
    lost = (await worker.claim(1))[0]
    await alone.queue.watch(done.id, "gw-2", follow=True)
    emitted = await worker.write(done, lost, text="x" * 10_000)
    assert (emitted.refused, set(emitted.followers)) == ({}, {done.id})
    await worker.end(done)
    assert [frame[2] for frame in gateway.frames()] == ["completed"]
    await alone.queue.cancel(TENANT, cancelled.id)
    await alone.queue.give_back([given_back], "handed_over", "drain")
    await beat(alone, seconds=2.5)
    await beat(alone, seconds=7)
    states = [await alone.state(job) for job in jobs]
    assert states == ["completed", "cancelled", "expired", "expired", "expired"]


def calls(server: Redis, command: str) -> int:
    """How often the command was called since the last reset of the statistics."""
    stats = server.info("commandstats").get(f"cmdstat_{command}", {})
    return int(stats.get("calls", 0))


async def live(queue: Queue) -> None:
    """A job from its submission to its end."""
    try:
        await queue.submit(0, [make_job()], 100)
    except StoreUnavailable:  # the scripts are lost; the next call loads them
        await queue.submit(0, [make_job()], 100)
    jobs = await queue.claim(0, "pool", "w-1", room=1, known=0, most=1)
    assert jobs
    await queue.emit(0, "w-1", b"", Step())
    assert await queue.give_back(jobs, "handed_over", "drain")
    await queue.cancel(TENANT, jobs[0].id)


async def test_scripts_that_redis_has_lost_are_loaded_again(alone: Case) -> None:
    await live(alone.queue)
    alone.server.function_flush()
    with pytest.raises(StoreUnavailable):
        await alone.queue.emit(0, "w-1", b"", Step())  # never connects, and loads nothing
    await alone.queue.connect(0)
    await alone.queue.emit(0, "w-1", b"", Step())
    alone.server.function_flush()
    await live(alone.queue)
    assert calls(alone.server, "evalsha") == 0


@pytest.fixture
def limited(own_kind: RedisServer) -> Iterator[str]:
    """The URL of a user who may not load functions, at a Redis without them."""
    with own_kind.client() as client:
        client.function_flush()
        client.config_resetstat()
        client.acl_setuser(
            "limited", enabled=True, passwords=["+word"], keys=["*"], channels=["*"],
            commands=["+@all", "-function"],
        )  # fmt: skip
        yield own_kind.url.replace("//", "//limited:word@")
        client.acl_deluser("limited")


async def test_a_user_that_may_not_load_functions_calls_scripts(
    own_kind: RedisServer, limited: str
) -> None:
    async with Servers(limited) as servers:
        queue = Queue(servers)
        with own_kind.client() as client:
            await live(queue)
            client.script_flush()
            await live(queue)
            assert calls(client, "evalsha")
            assert calls(client, "fcall") == 0
        await queue.close()


async def test_scripts_are_loaded_into_a_full_redis(alone: Case) -> None:
    await alone.submit()
    alone.server.config_set("maxmemory", 1)
    alone.server.function_flush()
    assert await alone.queue.claim(0, "pool", "w-1", room=1, known=0, most=1)
    assert calls(alone.server, "evalsha")


async def test_an_emit_neither_connects_nor_is_repeated(alone: Case) -> None:
    await alone.submit()
    worker = alone.worker()
    held = await worker.claim_one()
    alone.queue.give_up(0, "a test")
    losses = alone.queue.losses(0)
    with pytest.raises(StoreUnavailable):
        await worker.write(held)
    assert alone.queue.losses(0) == losses
    worker.numbers[held.id] = held.number
    await alone.queue.connect(0)
    assert not (await worker.write(held, again=True)).refused


async def test_jobs_and_leases_survive_a_restart(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    server.start()
    try:
        async with Servers(server.url) as servers:
            queue = Queue(servers)
            job, waiting = make_job(), make_job()
            await queue.submit(0, [job, waiting], 100)
            held = (await queue.claim(0, "pool", "w-1", room=1, known=0, most=1) or [])[0]
            server.stop(kill=True)
            server.start()

            known = [held.id, held.generation, held.number]

            async def emitted() -> Emitted | None:
                try:
                    await queue.connect(0)
                    reply = await queue.emit(0, "w-1", b"", Step(acknowledged=known))
                except StoreUnavailable:
                    return None
                return Queue.parse_emit(reply)

            found = await eventually(emitted, "a step")
            assert found
            assert (found.refused, found.short) == ({}, {})
            jobs = await queue.claim(0, "pool", "w-1", room=1, known=1, most=1)
            assert [each.id for each in jobs or ()] == [waiting.id]
            await queue.close()
    finally:
        server.stop()


async def test_all_keys_and_channels_of_a_shard_have_its_tag(case: Case) -> None:
    tag = keys.base(0).split("}")[0] + "}"
    await case.submit(deadline_s=9.0, prefixes=b"12345678", keep_s=1.0, body=b"x" * 70_000)
    await case.worker().claim()
    await case.queue.tick(0)
    names = [name.decode() for name in case.server.scan_iter("*")]
    assert all(name.startswith(tag) for name in names)
    assert case.base not in names

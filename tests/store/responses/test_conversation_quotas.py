"""Quotas: conversations and bytes that are kept of one tenant, counted in Redis."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.apis.responses.stored_response import stored_response
from shared.job.errors import QuotaExceeded, RedisMemoryFull
from shared.job.quotas import Quotas
from shared.job.responses import response_id
from shared.store import keys
from shared.store.queue import HeldJob, Queue
from tests.harness.settings import Settings
from tests.store.conftest import TENANT, claim, finish, make_answer, make_job, open_queue
from tests.store.responses.test_conversations import Side, answered

SETTINGS = Settings(max_body_bytes=1 << 20)
KEPT = keys.kept(0, TENANT)
EXPIRING = keys.base(0) + "expiring"


def kept_bytes(store: Redis) -> int:
    """What is counted; the sum must be that of the things."""
    counted = dict(store.zrange(KEPT, 0, -1, withscores=True))
    total = int(counted.pop(keys.KEPT_TOTAL.encode(), 0))
    assert total == sum(counted.values())
    return total


async def sweep(queue: Queue, store: Redis) -> None:
    """As if all that expires had expired."""
    for member in store.zrange(EXPIRING, 0, -1):
        thing = member.split()[0].decode()
        word = keys.CONVERSATION if thing.startswith("conv_") else keys.JOB
        store.delete(f"{keys.base(0)}{word}:{thing}")
        store.zadd(EXPIRING, {member: 1})
    await queue.sweep(0, 1000)


@pytest.fixture
async def queue(redis_url: str) -> AsyncIterator[Queue]:
    """A queue whose tenants have small quotas."""
    async with open_queue(redis_url) as queue:
        queue.quotas = Quotas(jobs=10, conversations=3, kept_bytes=50_000)
        yield queue


async def test_conversations_are_limited_and_given_back(queue: Queue, store: Redis) -> None:
    side = Side(queue, SETTINGS)
    made = [await side.new("x" * 1000) for _ in range(3)]
    with pytest.raises(QuotaExceeded, match="conversations"):
        await side.new()
    assert 3 * 1000 < kept_bytes(store) < 3 * 1300
    await side.conversations.delete(made[0])
    assert kept_bytes(store) < 2 * 1300
    more = await side.new("y" * 40_000)
    now = await side.conversations.get(TENANT, more.id)
    with pytest.raises(QuotaExceeded, match="bytes"):
        await side.conversations.append(now, [{"role": "user", "content": "z" * 9_000}])
    page = await side.items(more)
    now = await side.conversations.get(TENANT, more.id)
    await side.conversations.remove(now, page["data"][0]["id"])
    assert kept_bytes(store) < 2 * 1300
    for each in (*made[1:], more):
        await side.conversations.delete(each)
    assert kept_bytes(store) == 0
    assert not store.exists(keys.conversations(0, TENANT))


async def test_conversations_need_room_in_redis_memory(queue: Queue, store: Redis) -> None:
    side = Side(queue, SETTINGS)
    made = await side.new("x")
    store.set(f"{keys.base(0)}other", b"x" * (20 << 20))
    store.config_set("maxmemory", 40 << 20)  # of which 20 MB are for buffers
    try:
        await side.health.look()
        with pytest.raises(RedisMemoryFull):
            await side.new("y")
        with pytest.raises(RedisMemoryFull):
            await side.conversations.append(made, [{"role": "user", "content": "z"}])
    finally:
        store.config_set("maxmemory", 0)
    await side.health.look()
    assert await side.new("y")


async def test_a_used_conversation_stays_counted_until_it_expires(
    queue: Queue, store: Redis
) -> None:
    side = Side(queue, SETTINGS)
    conversation = await side.new("x" * 1000)
    for member in store.zrange(EXPIRING, 0, -1):
        store.zadd(EXPIRING, {member: 1})
    await queue.sweep(0, 1000)
    assert kept_bytes(store) > 1000
    ((_, due_us),) = store.zrange(EXPIRING, 0, -1, withscores=True)
    ttl_ms = store.pttl(keys.conversation(0, conversation.id))
    now_s, now_us = store.time()
    assert abs(due_us / 1e6 - (now_s + now_us / 1e6 + ttl_ms / 1000)) < 60
    await sweep(queue, store)
    assert kept_bytes(store) == 0
    assert not store.exists(keys.conversations(0, TENANT))


async def test_a_conversations_pictures_are_kept_once(queue: Queue, store: Redis) -> None:
    """Finding 6: 25 turns about one picture kept it 25 times, for 30 days."""
    queue.quotas = Quotas()
    side = Side(queue, SETTINGS)
    picture = "p" * 100_000
    conversation = await side.new(picture)
    for turn in range(10):
        await answered(side, f"out{turn}", conversation=conversation.id, input=f"in{turn}")
    await side.texts(conversation)
    assert kept_bytes(store) < 120_000
    bodies = [store.hstrlen(name, "body") for name in store.keys(keys.job(0, "*"))]
    assert len(bodies) == 10
    assert sum(bodies) < 10_000


async def test_of_a_chain_the_last_two_keep_what_is_before(queue: Queue, store: Redis) -> None:
    """Finding 6: a chat of 25 turns about a picture of 1 MB kept 27 MB."""
    queue.quotas = Quotas()
    side = Side(queue, SETTINGS)
    made = [await answered(side, "out0", input="p" * 100_000)]
    for turn in range(1, 10):
        previous = response_id(made[-1])
        made.append(
            await answered(side, f"out{turn}", previous_response_id=previous, input=f"in{turn}")
        )
    assert sum(store.hstrlen(keys.job(0, each), "body") for each in made) < 250_000
    assert kept_bytes(store) < 250_000
    for turn, each in enumerate(made):
        texts = await side.input_texts(each)
        assert texts[:2] == ["p" * 100_000, "out0"][: len(texts)]
        assert texts[1:] == [text for n in range(1, turn + 1) for text in (f"out{n - 1}", f"in{n}")]


@pytest.mark.seeds(4)
async def test_no_response_loses_its_input(queue: Queue, store: Redis, seed: int) -> None:
    """Responses continue others and are deleted, in any order."""
    queue.quotas, random_of = Quotas(), random.Random(seed)
    side = Side(queue, SETTINGS)
    first = await answered(side, "out", input="p" * 5_000)
    inputs, outputs = {first: ["p" * 5_000]}, {first: "out"}
    for step in range(40):
        some = random_of.choice([*inputs, *list(inputs)[-2:]])
        if random_of.random() < 0.3 and len(inputs) > 1:
            stored = await stored_response(queue, TENANT, response_id(some))
            await side.responses.delete(stored)
            del inputs[some]
        else:
            new = await answered(
                side, f"out{step}", previous_response_id=response_id(some), input=f"in{step}"
            )
            inputs[new], outputs[new] = [*inputs[some], outputs[some], f"in{step}"], f"out{step}"
        for each, texts in inputs.items():
            assert await side.input_texts(each) == texts
    kept_bytes(store)
    await sweep(queue, store)
    assert not store.exists(KEPT)


@pytest.mark.seeds(5)
async def test_the_sum_never_drifts(queue: Queue, store: Redis, seed: int) -> None:
    """Jobs and conversations in any order, calls sent twice, conversations deleted by a person."""
    random_of, side = random.Random(seed), Side(queue, SETTINGS)
    queue.quotas = Quotas()
    held: list[HeldJob] = []
    conversations = []
    for _ in range(60):
        act = random_of.choice(["submit", "again", "claim", "end", "cancel", "talk", "del"])
        if act in ("submit", "again"):
            job = make_job(body=b"x" * random_of.choice([10, 5000, 20_000]), stream=False)
            for _ in range(1 if act == "submit" else 2):
                queue.parse_submit([job], await queue.submit(0, [job], 1000))
        elif act == "claim":
            held += await claim(queue, 3)
        elif act == "end" and held:
            await finish(queue, held.pop(), make_answer(body=b"y" * random_of.choice([10, 9000])))
        elif act == "cancel" and held:
            await queue.cancel(TENANT, held.pop().id)
        elif act == "talk":
            conversations.append(await side.new("x" * random_of.choice([10, 8000])))
        elif act == "del" and conversations:
            gone = conversations.pop()
            if random_of.random() < 0.5:
                await side.conversations.delete(gone)
            else:
                store.delete(keys.conversation(0, gone.id))
        kept_bytes(store)
    for job in await claim(queue):
        held.append(job)
    for job in held:
        await queue.cancel(TENANT, job.id)
    await sweep(queue, store)
    assert kept_bytes(store) == 0
    assert not store.exists(KEPT)

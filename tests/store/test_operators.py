"""What operators want of pools, and what they have changed."""

from __future__ import annotations

from redis import Redis

from shared.fleet.worker_answer import WorkerAnswer
from shared.store import keys
from shared.store.operators import (
    MOST_CHANGES,
    AuditTrail,
    DesiredPool,
    DesiredPools,
    OperationAnswers,
    PoolSwitches,
)
from shared.store.queue import Queue
from shared.tenants.api_key import ApiKey


async def test_switches_and_adapters_are_those_of_a_pool(queue: Queue) -> None:
    desired = DesiredPools(queue)
    await desired.switch("a", paused=True)
    await desired.switch("a", intake_stopped=True)
    await desired.switch("b", paused=True)
    await desired.switch("b", paused=False)
    one, two = ({"lora_name": name, "lora_path": f"/{name}"} for name in ("one", "two"))
    new = two | {"lora_path": "/new"}
    assert await desired.put_adapter("a", two, replace=False)
    assert await desired.put_adapter("a", one, replace=False)
    assert not await desired.put_adapter("a", new, replace=False)
    assert await desired.put_adapter("a", new, replace=True)
    assert await desired.put_adapter("b", one, replace=True)
    assert await desired.switches(["a", "b", "c"]) == {"a": PoolSwitches(True, True)}
    assert await desired.read("a") == DesiredPool(True, True, {"one": one, "two": new})
    assert await desired.read("b") == DesiredPool(False, False, {"one": one})
    assert await desired.remove_adapter("a", "one")
    assert not await desired.remove_adapter("a", "one")
    assert list((await desired.read("a")).adapters) == ["two"]
    assert list((await desired.read("b")).adapters) == ["one"]


async def test_answers_of_workers_are_kept_for_a_while(queue: Queue, server: Redis) -> None:
    answers = OperationAnswers(queue.servers)
    answer = WorkerAnswer(200, {"status": ["paused"]}, 0.5)
    await answers.write("op", "w-1", answer)
    assert await answers.read("op") == {"w-1": answer}
    assert await answers.read("another") == {}
    assert 0 < server.ttl(keys.operation("op")) <= 600


async def test_the_audit_trail_is_bounded_and_newest_first(queue: Queue, server: Redis) -> None:
    audit, operator = AuditTrail(queue.servers), ApiKey("key_1", "ops")
    with server.pipeline(transaction=False) as pipeline:
        for _ in range(MOST_CHANGES + 500):
            pipeline.xadd(keys.AUDIT, {"record": "{}"})
        pipeline.execute()
    for number in range(3):
        await audit.write("key.created", "key_2", operator, "why", number=number)
    assert server.xlen(keys.AUDIT) < MOST_CHANGES + 200
    first, second = await audit.read("", 2)
    (third,) = await audit.read(second.id, 1)
    details = {"number": 2}
    assert first[:-1] == ("key.created", "key_2", "ops", "key_1", "why", details)
    assert [second.details["number"], third.details["number"]] == [1, 0]
    assert first.at_s >= third.at_s > 0

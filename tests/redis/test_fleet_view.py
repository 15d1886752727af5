"""The gateway's copy of the fleet: no value in Redis can end its refreshing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.jobs import fleet_view
from gateway.jobs.fleet_view import FleetView
from shared.fleet.registry import Registry
from shared.fleet.scale_decisions import ScaleStore
from shared.platform.tasks import TaskSupervisor
from shared.protocol import keys
from shared.queue.job_queue import JobQueue
from tests.redis.test_registry import INFO
from tests.waiting import eventually

NOT_UTF8 = b"\xff\xfe"


@pytest.fixture
async def fleet(queue: JobQueue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetView]:
    monkeypatch.setattr(fleet_view, "_REFRESH_S", 0.01)
    fleet = FleetView(Registry(queue.servers.primary), ScaleStore(queue.servers.primary))
    tasks = TaskSupervisor()
    tasks.start("fleet view", fleet.run())
    yield fleet
    assert tasks.ended == {}
    await tasks.stop()


async def test_malformed_values_of_all_kinds_do_not_hide_the_others(
    fleet: FleetView, queue: JobQueue, store: Redis
) -> None:
    registry = Registry(queue.servers.primary)
    await registry.register_models("pool", [{"id": "m"}])
    store.hset(keys.MODELS, mapping={"bad": "{", NOT_UTF8: "{}", "text": NOT_UTF8, "list": "[]"})
    store.sadd(keys.WORKERS, "w-2", "w-3", NOT_UTF8)
    store.hset(keys.worker("w-2"), mapping={"state": "7", "id": NOT_UTF8})
    store.set(keys.worker("w-3"), "not a hash")
    store.hset(keys.scale("pool"), "scale", NOT_UTF8)
    await registry.announce(INFO)

    async def complete() -> bool:
        return list(fleet.models) == ["m"] and fleet.workers == [INFO]

    await eventually(complete, "what can be read is read")
    assert fleet.scales == {}
    store.delete(keys.scale("pool"))
    store.set(keys.scale("pool"), "not a hash")
    await fleet.refresh()
    assert fleet.workers == [INFO]
    assert fleet.problem == ""


async def test_a_copy_that_can_not_be_refreshed_is_a_problem(
    fleet: FleetView, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "_OUTDATED_S", 0.1)
    store.set(keys.MODELS, "not a hash")

    async def outdated() -> bool:
        return "WRONGTYPE" in fleet.problem

    await eventually(outdated, "the problem is shown")
    store.delete(keys.MODELS)

    async def fresh() -> bool:
        return fleet.problem == ""

    await eventually(fresh, "the copy is fresh again")

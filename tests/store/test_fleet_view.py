"""The gateway's copy of the fleet: no value in Redis can end its refreshing."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis import Redis

from gateway.core import fleet_view
from gateway.core.fleet_view import FleetView
from shared.fleet.limits import Limit
from shared.fleet.pools import load_pools
from shared.job.errors import BadRequest, ModelNotFound, NoWorker
from shared.platform.tasks import TaskSupervisor
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.queue import Queue
from tests.harness.settings import Settings
from tests.harness.waiting import eventually

NOT_UTF8 = b"\xff\xfe"


@pytest.fixture
async def fleet(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[FleetView]:
    monkeypatch.setattr(fleet_view, "_REFRESH_S", 0.01)
    fleet = FleetView(queue)
    tasks = TaskSupervisor()
    tasks.start("fleet view", fleet.run())
    yield fleet
    assert tasks.ended == {}
    await tasks.stop()


async def test_a_copy_that_can_not_be_refreshed_is_a_problem(
    fleet: FleetView, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_view, "GATEWAY_FLEET", Limit("gateway_fleet", problem=0.1))
    store.set(keys.MODELS, "not a hash")

    async def outdated() -> bool:
        return "WRONGTYPE" in fleet.problem

    await eventually(outdated, "the problem is shown")
    store.delete(keys.MODELS)

    async def fresh() -> bool:
        return fleet.problem == ""

    await eventually(fresh, "the copy is fresh again")


POOLS = {
    "chat-1": {"served_names": ["chat"], "version": "1", "weight": 90},
    "chat-2": {"served_names": ["chat"], "version": "2", "weight": 10},
}


async def test_the_pools_of_the_file_are_known_and_workers_add_their_cards(
    queue: Queue,
) -> None:
    primary = queue.servers.primary
    registry = Registry(primary)
    pools = load_pools(Settings(pools=POOLS))  # type: ignore[arg-type]
    fleet = FleetView(queue, pools, "chat")
    assert (await fleet.model("")).pool in {"chat-1", "chat-2"}
    assert (await fleet.model("chat", "2")).pool == "chat-2"
    assert fleet.wait_reason("chat-2") == "no worker runs"
    cards = [{"id": "chat", "max_model_len": 64}, {"id": "chat:2", "max_model_len": 64}]
    await registry.register_models("chat-2", cards, "2", 50)
    await fleet.refresh()
    model = await fleet.model("chat:2")
    assert (model.card["max_model_len"], model.weight) == (64, 10), "the file's weight"


async def test_an_unknown_name_is_refused_with_the_nearest_ones(queue: Queue) -> None:
    primary = queue.servers.primary
    registry = Registry(primary)
    fleet = FleetView(queue)
    with pytest.raises(NoWorker):
        await fleet.model("chat")
    await registry.register_models("chat", [{"id": "org/Chat-8B"}])
    await registry.register_models("embed", [{"id": "embed"}])
    with pytest.raises(ModelNotFound, match="nearest names are: org/Chat-8B"):
        await fleet.model("chat-8b")
    with pytest.raises(BadRequest, match="must name one of the fleet's models"):
        await fleet.model("")
    with pytest.raises(ModelNotFound):
        await fleet.model("embed", "1")

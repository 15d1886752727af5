"""What TorchServe's description of a model says of its queue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from gateway.apis.torchserve import routes
from gateway.core.submitter import Submitter
from gateway.http.known_keys import ANYONE
from shared.fleet.registry import ModelInfo


@pytest.mark.parametrize(("pool", "room"), [("small", 5 * 4 - 3), ("other", 100 * 4)])
async def test_the_room_is_that_of_the_models_pool(
    monkeypatch: pytest.MonkeyPatch, pool: str, room: int
) -> None:
    unused: Any = None
    fleet = SimpleNamespace(
        models={"m": ModelInfo("m", pool, {})}, scales={}, workers_of=lambda _: []
    )
    gateway: Any = SimpleNamespace(
        fleet=fleet,
        queue=SimpleNamespace(shards=4),
        settings=SimpleNamespace(max_queue_depth=100),
        submitter=Submitter(unused, 100, unused, {"small": 5}),
    )

    async def depths(_: object) -> list[Any]:
        return [SimpleNamespace(pool="small", waiting=n) for n in (1, 2)]

    monkeypatch.setattr(routes, "depths", depths)
    (found,) = await routes.describe_model("m", gateway, ANYONE)
    assert found["jobQueueStatus"]["remainingCapacity"] == room

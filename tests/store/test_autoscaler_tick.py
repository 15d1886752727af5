"""The autoscaler's tick on a real Redis, with workers that only register."""

from __future__ import annotations

from typing import Any

import pytest
from redis import Redis

from gateway.ops.autoscaler import tick as autoscale
from gateway.ops.autoscaler.tick import tick
from shared.fleet.registry import LOADING_EXPIRY_S
from shared.fleet.scale_decisions import Scale
from shared.job.states import WorkerState
from shared.store import keys
from shared.store.errors import StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.operators import HISTORY, ScaleStore
from shared.store.queue import Queue
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.store.conftest import POOL, claim, open_queue, submit
from tests.unit.worker_info import worker

SETTINGS = Settings(autoscale="m=0:3", pool=POOL)


@pytest.fixture
def registry(queue: Queue) -> Registry:
    return Registry(queue.servers.primary)


async def scale_of(queue: Queue, pool: str = POOL) -> Scale:
    _, scales = await ScaleStore(queue).read([pool])
    return scales[pool]


async def test_announced_workers_are_observed(queue: Queue, registry: Registry) -> None:
    first = worker(pool=POOL, finished=2, job_s=3.0, start_s=9.0)
    await registry.announce(first)
    loads = worker("w-2", pool=POOL, state=WorkerState.STARTING, slots=0)
    await registry.announce(loads, LOADING_EXPIRY_S)
    await registry.announce(worker("w-3", pool="other"))
    for _ in range(3):
        await submit(queue)
    await claim(queue, 1)
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    scale = await scale_of(queue)
    seen = scale.seen
    assert (seen.waiting, seen.running, seen.ready, seen.starting) == (2, 1, 1, 1)
    assert (seen.slots, seen.start_s, seen.job_s) == (8, 9.0, 3.0)
    assert scale.wanted >= 2  # one would do, but the other one loads


async def test_a_workers_own_card_is_never_overwritten(queue: Queue, registry: Registry) -> None:
    await registry.register_models("its-own", [{"id": "m", "max_model_len": 9}])
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    await registry.declare_models("other", ["m"])
    model = (await registry.models())["m"]
    assert (model.pool, model.card) == ("its-own", {"id": "m", "max_model_len": 9})
    assert (await scale_of(queue, "its-own")).model == "m"


async def test_a_decision_that_cannot_be_read_is_as_if_there_were_none(
    queue: Queue, registry: Registry, store: Redis
) -> None:
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    store.hset(keys.first(keys.DOCUMENTS, "scale"), POOL, '{"pool": 1}')
    assert (await ScaleStore(queue).read([POOL, "unknown"]))[1] == {}
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    assert (await scale_of(queue)).wanted == 0
    assert [entry.wanted for entry in await ScaleStore(queue).history(POOL)] == [0, 0]


async def test_the_history_is_bounded_and_newest_first(queue: Queue, registry: Registry) -> None:
    for n in range(HISTORY + 20):
        settings = Settings(autoscale=f"m={n % 2}:3", pool=POOL)
        await tick(queue, registry, settings, settings.described)
    history = await ScaleStore(queue).history(POOL)
    assert len(history) == HISTORY
    assert [entry.wanted for entry in history[:3]] == [1, 0, 1]
    assert history[0].at_s > history[-1].at_s


async def test_a_pool_that_fails_does_not_stop_the_others(
    queue: Queue, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = ScaleStore.read

    async def fails_for_one(store: ScaleStore, pools: list[str]) -> tuple[float, dict[str, Scale]]:
        assert pools != ["a"]
        return await read(store, pools)

    monkeypatch.setattr(ScaleStore, "read", fails_for_one)
    settings = Settings(autoscale="a=1:1,b=1:1")
    await tick(queue, registry, settings, settings.described)
    assert (await scale_of(queue, "b")).wanted == 1


async def test_without_redis_nothing_is_decided_and_the_next_tick_goes_on(
    own_redis: RedisServer,
) -> None:
    async with open_queue(own_redis.url) as queue:
        registry = Registry(queue.servers.primary)
        await tick(queue, registry, SETTINGS, SETTINGS.described)
        own_redis.stop()
        with pytest.raises((StoreUnavailable, OSError)):
            await tick(queue, registry, SETTINGS, SETTINGS.described)
        own_redis.start()
        await submit(queue)
        await tick(queue, registry, SETTINGS, SETTINGS.described)
        assert (await scale_of(queue)).wanted == 1


async def test_docker_that_fails_leaves_the_decision_readable(
    queue: Queue, registry: Registry
) -> None:
    nobody = "http://127.0.0.1:9"
    settings = Settings(
        autoscale="m=0:3", pool=POOL, autoscale_actuator="docker", docker_host=nobody
    )
    await submit(queue)
    await tick(queue, registry, settings, settings.described)
    assert (await scale_of(queue)).wanted == 1


async def test_the_docker_actuator_gets_the_decision_and_what_it_returned(
    queue: Queue, registry: Registry, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    class Recorded:
        def __init__(self, *where: str) -> None:
            asked.append(where)

        async def reconcile(
            self, wanted: int, workers: list[Any], draining: tuple[str, ...]
        ) -> Any:
            asked.append((wanted, draining))
            return ["w-9"]

    monkeypatch.setattr(autoscale, "Docker", Recorded)
    settings = Settings(
        autoscale="m=1:3", pool=POOL, autoscale_actuator="docker", docker_project="p"
    )
    for _ in range(2):
        await tick(queue, registry, settings, settings.described)
    where = ("http://docker-proxy:2375", "p", "worker")
    assert asked == [where, (1, ()), where, (1, ("w-9",))]
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    assert len(asked) == 4

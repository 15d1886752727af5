"""What the fleet tells of itself: workers, the models they serve, decisions of the autoscaler; and
what gateways make of values that can't be read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter

from gateway.ops.autoscaler import tick as autoscale
from gateway.ops.autoscaler.tick import tick
from shared.fleet.registry import ModelInfo, unknown_card
from shared.fleet.scale_decisions import Scale
from shared.platform.malformed import MalformedValues
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.operators import HISTORY, ScaleStore
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, Case
from tests.unit.worker_info import worker

INFO = worker(models=("m", "m:adapter"), running=3, jobs=2, kv_usage=0.25, host="höst")


@pytest.fixture
def metrics() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def registry(live: Case, metrics: CollectorRegistry) -> Registry:
    counter = Counter("malformed", "values", ["kind"], registry=metrics)
    return Registry(live.queue.servers.primary, MalformedValues(counter))


async def test_a_worker_is_there_while_it_announces_itself(registry: Registry, live: Case) -> None:
    await registry.announce(INFO)
    assert await registry.workers() == [INFO]
    assert 9_000 < live.server.pttl(keys.fleet("worker", "w-1")) <= 10_000
    await registry.leave("w-1")
    await registry.leave("never came")
    assert await registry.workers() == []
    await registry.announce(INFO, expiry_s=0.001)

    await eventually(
        lambda: not live.server.exists(keys.fleet("worker", "w-1")), "the worker's entry expires"
    )
    assert await registry.workers() == []
    assert live.server.smembers(keys.fleet("workers")) == set()


async def test_a_worker_that_has_failed_is_shown_until_its_entry_expires_and_its_id_is_free(
    registry: Registry,
) -> None:
    assert await registry.reserve("w-1", "first")
    await registry.announce(replace(INFO, failure="its engine died"))
    await registry.release_id("w-1", "another process")
    assert not await registry.reserve("w-1", "second")
    await registry.release_id("w-1", "first")
    assert await registry.workers() == []
    (failed,) = await registry.heartbeats()
    assert failed.worker.failure == "its engine died"
    assert await registry.reserve("w-1", "second")
    await registry.announce(INFO)
    assert await registry.workers() == [INFO]


async def test_models_stay_without_workers_and_what_a_worker_announces_counts(
    registry: Registry,
) -> None:
    await registry.declare_models("declared", [unknown_card("a"), unknown_card("b")])
    assert (await registry.models())["a"] == ModelInfo("a", "declared", unknown_card("a"))
    cards = [{"id": "b", "max_model_len": 9}, {"id": "c", "parent": None}]
    await registry.register_models("pool", cards)
    await registry.declare_models("declared", [unknown_card("a"), unknown_card("b")])
    adapter = {"id": "sql", "parent": "chat"}
    for version, weight in (("1", 90), ("2", 10)):
        names = [{"id": "chat"}, {"id": f"chat:{version}"}, adapter]
        await registry.register_models(f"chat-{version}", names, version, weight)
    models = await registry.models()
    assert list(models) == ["a", "b", "c", "chat:1", "chat:2", "sql:1", "sql:2"]
    assert models["b"] == ModelInfo("b", "pool", cards[0])
    assert models["chat:2"] == ModelInfo("chat:2", "chat-2", {"id": "chat:2"}, "chat", "2", 10)
    assert (models["sql:1"].served_name, models["sql:1"].card) == ("sql", adapter)


async def test_malformed_entries_are_skipped_and_counted(
    registry: Registry, live: Case, metrics: CollectorRegistry
) -> None:
    await registry.announce(INFO)
    await registry.register_models("pool", [{"id": "good"}])
    live.server.hset(keys.fleet("worker", "w-1"), "new_field", '"of another version"')
    damages: list[tuple[Any, Any]] = [
        ("state", b"\xff"), ("state", b'"dancing"'), ("slots", b'"many"'), ("pool", None),
    ]  # fmt: skip
    for number, (field, value) in enumerate(damages, 1):
        await registry.announce(replace(INFO, id="w-2"))
        if value is None:
            live.server.hdel(keys.fleet("worker", "w-2"), field)
        else:
            live.server.hset(keys.fleet("worker", "w-2"), field, value)
        assert await registry.workers() == [INFO]
        assert metrics.get_sample_value("malformed_total", {"kind": "worker"}) == number
        await registry.leave("w-2")
    card = b'{"pool": "p", "card": {"max_model_len": Infinity}}'
    records = {"1": b"{", "2": b'{"card": {}}', "3": card}
    live.server.hset(keys.fleet("models"), mapping=records)  # type: ignore[arg-type]
    assert await registry.models() == {"good": ModelInfo("good", "pool", {"id": "good"})}
    assert metrics.get_sample_value("malformed_total", {"kind": "model"}) == 3


# --- gateways ---


# --- the autoscaler's tick ---


async def scale_of(case: Case, pool: str = POOL) -> Scale:
    _, scales = await ScaleStore(case.queue).read([pool])
    return scales[pool]


async def test_decisions_are_bounded_and_those_that_cannot_be_read_are_as_if_there_were_none(
    registry: Registry, live: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(HISTORY + 20):
        settings = Settings(autoscale=f"m={n % 2}:3", pool=POOL)
        await tick(live.queue, registry, settings, settings.described)
    history = await ScaleStore(live.queue).history(POOL)
    assert len(history) == HISTORY
    assert [entry.wanted for entry in history[:3]] == [1, 0, 1]
    assert history[0].at_s > history[-1].at_s
    live.server.hset(keys.first("documents", "scale"), POOL, '{"pool": 1}')
    assert (await ScaleStore(live.queue).read([POOL, "unknown"]))[1] == {}
    read = ScaleStore.read

    async def fails_for_one(store: ScaleStore, pools: list[str]) -> tuple[float, dict[str, Scale]]:
        assert pools != ["a"]
        return await read(store, pools)

    monkeypatch.setattr(ScaleStore, "read", fails_for_one)
    settings = Settings(autoscale="a=1:1,b=1:1")
    await tick(live.queue, registry, settings, settings.described)
    assert (await scale_of(live, "b")).wanted == 1


async def test_the_docker_actuator_gets_the_decision_and_what_it_returned(
    registry: Registry, live: Case, monkeypatch: pytest.MonkeyPatch
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

    nobody = Settings(
        autoscale="m=1:3", pool=POOL, autoscale_actuator="docker",
        docker_host="http://127.0.0.1:9", docker_project="p",
    )  # fmt: skip
    await tick(live.queue, registry, nobody, nobody.described)
    assert (await scale_of(live)).wanted == 1, "it is readable although Docker fails"
    monkeypatch.setattr(autoscale, "Docker", Recorded)
    for _ in range(2):
        await tick(live.queue, registry, nobody, nobody.described)
    where = ("http://127.0.0.1:9", "p", "worker")
    assert asked == [where, (1, ()), where, (1, ("w-9",))]

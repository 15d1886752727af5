"""The registry: workers, the models they serve, and which models stay without workers."""

from __future__ import annotations

from dataclasses import replace

import pytest
from prometheus_client import CollectorRegistry, Counter
from redis import Redis

from shared.fleet.pool import pool_name
from shared.fleet.registry import ModelInfo, WorkerInfo, unknown_card
from shared.job.states import WorkerState
from shared.platform.malformed import MalformedValues
from shared.store import keys
from shared.store.fleet_registry import Registry
from shared.store.queue import Queue
from tests.harness.waiting import eventually

INFO = WorkerInfo(
    id="w-1",
    pool="pool",
    state=WorkerState.READY,
    engine="simulated",
    models=("m", "m:adapter"),
    slots=8,
    running=3,
    jobs=2,
    kv_usage=0.25,
    host="höst",
    pid=1,
    version="0.1.0",
    reason="5 of 8 slots are free",
)


@pytest.fixture
def registry(queue: Queue) -> Registry:
    return Registry(queue.servers.primary)


async def test_a_silent_worker_is_forgotten(registry: Registry, store: Redis) -> None:
    await registry.announce(INFO, expiry_s=0.001)

    async def gone() -> bool:
        return await registry.workers() == []

    await eventually(gone, "the worker's entry expires")
    assert store.smembers(keys.WORKERS) == set()


async def test_an_announcement_lasts_for_several_heartbeats(
    registry: Registry, store: Redis
) -> None:
    await registry.announce(INFO)
    assert 9_000 < store.pttl(keys.worker("w-1")) <= 10_000


async def test_a_worker_that_leaves_is_gone_at_once(registry: Registry, store: Redis) -> None:
    await registry.announce(INFO)
    await registry.leave("w-1")
    await registry.leave("never came")
    assert await registry.workers() == []
    assert store.keys() == []


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


async def test_models_stay_when_their_workers_go(registry: Registry) -> None:
    cards = [{"id": "b", "max_model_len": 9}, {"id": "a", "parent": None}]
    await registry.register_models("pool", cards)
    await registry.announce(INFO)
    await registry.leave("w-1")
    models = await registry.models()
    assert list(models) == ["a", "b"]
    assert models["b"] == ModelInfo("b", "pool", cards[0])


@pytest.mark.parametrize(
    ("model", "pool"),
    [
        ("demo", "demo"),
        ("qwen3-0.6b", "qwen3-0.6b"),
        ("Qwen/Qwen3-0.6B", "qwen-qwen3-0.6b-"),
        ("a:b{c} \n", "a-b-c-"),
        ("模型", "model-"),
        ("x" * 41, "x" * 40 + "-"),
    ],
)
def test_a_pools_name_is_readable_and_safe_in_a_key(model: str, pool: str) -> None:
    name = pool_name(model)
    assert name == pool if not pool.endswith("-") else name.startswith(pool)
    assert len(name) <= 49
    assert not set(name) & set(":{} \n/")


def test_models_that_look_alike_have_pools_of_their_own() -> None:
    models = ["a/b", "a-b", "A-b", "a b", "a--b", "a-b-", "", "model", "x" * 40, "x" * 41]
    assert len({pool_name(model) for model in models}) == len(models)


async def test_an_entry_of_another_version_is_read_as_far_as_it_goes(
    queue: Queue, store: Redis
) -> None:
    registry = Registry(queue.servers.primary)
    await registry.announce(INFO)
    store.hset(keys.worker(INFO.id), "new_field", '"x"')
    assert await registry.workers() == [INFO]
    store.hset(keys.worker(INFO.id), "state", '"dancing"')
    assert await registry.workers() == []


async def test_a_workers_announcement_replaces_a_declared_model(registry: Registry) -> None:
    await registry.declare_models("pool", ["a"])
    assert (await registry.models())["a"] == ModelInfo("a", "pool", unknown_card("a"))
    await registry.register_models("own", [{"id": "a", "max_model_len": 9}])
    await registry.declare_models("pool", ["a"])
    assert (await registry.models())["a"] == ModelInfo("a", "own", {"id": "a", "max_model_len": 9})


NOT_UTF8 = b"\xff\xfe"
DEEP = b"[" * 100_000


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("state", NOT_UTF8),
        ("slots", b'"many"'),
        ("host", DEEP),
        (NOT_UTF8, b"1"),
        ("pool", None),
    ],
)
async def test_a_malformed_worker_is_skipped_and_counted(
    queue: Queue, store: Redis, field: str | bytes, value: bytes | None
) -> None:
    metrics = CollectorRegistry()
    counter = Counter("malformed", "values", ["kind"], registry=metrics)
    registry = Registry(queue.servers.primary, MalformedValues(counter))
    await registry.announce(INFO)
    await registry.announce(replace(INFO, id="w-2"))
    if value is None:
        store.hdel(keys.worker("w-2"), field)
    else:
        store.hset(keys.worker("w-2"), field, value)
    assert await registry.workers() == [INFO]
    assert metrics.get_sample_value("malformed_total", {"kind": "worker"}) == 1


@pytest.mark.parametrize(
    ("name", "record"),
    [
        ("bad", b"{"),
        (NOT_UTF8, b'{"pool": "p", "card": {}}'),
        ("bad", b'{"card": {}}'),
        ("bad", b'{"pool": "p", "card": {"max_model_len": Infinity}}'),
        ("bad", DEEP),
    ],
)
async def test_a_malformed_model_is_skipped_and_counted(
    queue: Queue, store: Redis, name: str | bytes, record: bytes
) -> None:
    metrics = CollectorRegistry()
    counter = Counter("malformed", "values", ["kind"], registry=metrics)
    registry = Registry(queue.servers.primary, MalformedValues(counter))
    await registry.register_models("pool", [{"id": "good"}])
    store.hset(keys.MODELS, name, record)
    assert await registry.models() == {"good": ModelInfo("good", "pool", {"id": "good"})}
    assert metrics.get_sample_value("malformed_total", {"kind": "model"}) == 1


async def test_a_version_of_a_model_has_entries_of_its_own(queue: Queue) -> None:
    registry = Registry(queue.servers.primary)
    adapter = {"id": "sql", "parent": "chat"}
    for version, weight in (("1", 90), ("2", 10)):
        cards = [{"id": "chat"}, {"id": f"chat:{version}"}, adapter]
        await registry.register_models(f"chat-{version}", cards, version, weight)
    models = await registry.models()
    assert set(models) == {"chat:1", "chat:2", "sql:1", "sql:2"}
    assert models["chat:2"] == ModelInfo("chat:2", "chat-2", {"id": "chat:2"}, "chat", "2", 10)
    assert (models["sql:1"].served_name, models["sql:1"].card) == ("sql", adapter)


async def test_a_declared_model_gives_way_to_what_a_worker_announces(queue: Queue) -> None:
    registry = Registry(queue.servers.primary)
    await registry.declare_models("chat-2", ["chat", "chat:2"], "2", 10)
    assert (await registry.models())["chat:2"].card["owned_by"] == "flotilla"
    await registry.register_models("chat-2", [{"id": "chat"}, {"id": "chat:2"}], "2", 20)
    await registry.declare_models("chat-2", ["chat", "chat:2"], "2", 10)
    models = await registry.models()
    assert models == {"chat:2": ModelInfo("chat:2", "chat-2", {"id": "chat:2"}, "chat", "2", 20)}

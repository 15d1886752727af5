"""The autoscaler's tick on a real Redis, with workers that only register."""

from __future__ import annotations

from dataclasses import replace

import httpx
import pytest
from redis import Redis

from gateway.ops.autoscaler import tick as autoscale
from gateway.ops.autoscaler.tick import tick
from shared.fleet.autoscale_types import Decision, Limits, Observation, PolicyState
from shared.fleet.registry import WorkerInfo
from shared.fleet.scale_decisions import Scale
from shared.job.states import WorkerState
from shared.store.interface import StoreUnavailable
from shared.store.redis import keys
from shared.store.redis.fleet_registry import Registry
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.scale_store import HISTORY, ScaleStore
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.redis.conftest import POOL, claim, open_queue, submit
from tests.unit.gateway.test_observation import worker

SETTINGS = Settings(autoscale="m=0:3", pool=POOL)


@pytest.fixture
def registry(queue: JobQueue) -> Registry:
    return Registry(queue.servers.primary)


@pytest.fixture
def policy(monkeypatch: pytest.MonkeyPatch) -> None:
    """One worker for two waiting jobs: a policy whose decisions a test can count."""

    def decide(now: Observation, limits: Limits, state: PolicyState | None) -> Decision:
        wanted = min(max((now.waiting + 1) // 2, limits.min), limits.max)
        changed = state is None or state.wanted != wanted
        changed_at_s = now.at_s if changed or state is None else state.changed_at_s
        return Decision(wanted, f"{now.waiting} wait", 1.5, PolicyState(wanted, changed_at_s))

    monkeypatch.setattr(autoscale, "decide", decide)


async def scale_of(queue: JobQueue, pool: str = POOL) -> Scale:
    _, scales = await ScaleStore(queue.servers.primary).read([pool])
    return scales[pool]


async def test_announced_workers_are_observed(
    queue: JobQueue, registry: Registry, policy: None
) -> None:
    first = worker(pool=POOL, finished=2, job_seconds=6.0, start_s=9.0, request_bytes=100)
    await registry.announce(first)
    await registry.announce(worker("w-2", pool=POOL, state=WorkerState.STARTING, slots=0))
    await registry.announce(worker("w-3", pool="other"))
    for _ in range(3):
        await submit(queue, body=b"x" * 100)
    await claim(queue, 1)
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    done = replace(first, finished=4, job_seconds=14.0, prompt_tokens=40, completion_tokens=60)
    await registry.announce(replace(done, request_bytes=300))
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    seen = (await scale_of(queue)).seen
    assert (seen.waiting, seen.running, seen.ready, seen.starting) == (2, 1, 1, 1)
    assert (seen.slots, seen.start_s) == (8, 9.0)
    # The second tick's two jobs, and the first tick's with the weight of one.
    assert seen.job_s == pytest.approx((8 + 3) / 3, rel=0.01)
    # 100 bytes each; 40 tokens for the 200 + 50 bytes of three jobs; 60 / 3 tokens of completion.
    assert seen.waiting_tokens == pytest.approx(2 * (100 * 40 / 250 + 20), rel=0.01)


async def test_a_workers_own_card_is_never_overwritten(queue: JobQueue, registry: Registry) -> None:
    await registry.register_models("its-own", [{"id": "m", "max_model_len": 9}])
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    await registry.declare_models("other", ["m"])
    model = (await registry.models())["m"]
    assert (model.pool, model.card) == ("its-own", {"id": "m", "max_model_len": 9})
    assert (await scale_of(queue, "its-own")).model == "m"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tick_state", "{"),
        ("tick_state", '{"state": {"wanted": "many"}}'),
        ("scale", '{"pool": 1}'),
        ("scale", b"\xff"),
    ],
)
async def test_a_record_that_cannot_be_read_is_as_if_there_were_none(
    queue: JobQueue, registry: Registry, store: Redis, policy: None, field: str, value: str
) -> None:
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    store.hset(keys.scale(POOL), field, value)
    store.lpush(keys.scaling_events(POOL), "nonsense")
    _, scales = await ScaleStore(queue.servers.primary).read([POOL, "unknown"])
    assert (POOL in scales) == (field != "scale")
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    assert (await scale_of(queue)).wanted == 0
    history = await ScaleStore(queue.servers.primary).history(POOL)
    assert history
    assert {entry.wanted for entry in history} == {0}


async def test_the_history_is_bounded_and_newest_first(
    queue: JobQueue, registry: Registry, policy: None
) -> None:
    for n in range(HISTORY + 20):
        await (submit(queue) if n % 2 else claim(queue))
        await tick(queue, registry, SETTINGS, SETTINGS.described)
    history = await ScaleStore(queue.servers.primary).history(POOL)
    assert len(history) == HISTORY
    assert [entry.wanted for entry in history[:3]] == [1, 0, 1]
    assert history[0].at_s > history[-1].at_s


async def test_a_pool_that_fails_does_not_stop_the_others(
    queue: JobQueue, registry: Registry, store: Redis
) -> None:
    store.set(keys.scale("a"), "not a hash")
    settings = Settings(autoscale="a=1:1,b=1:1")
    await tick(queue, registry, settings, settings.described)
    assert (await scale_of(queue, "b")).wanted == 1


async def test_without_redis_nothing_is_decided_and_the_next_tick_goes_on(
    own_redis: RedisServer, policy: None
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


class Unreachable:
    """An actuator that raises, as if its machine did not answer."""

    asked: list[int]

    async def reconcile(
        self, wanted: int, workers: list[WorkerInfo], draining: list[str]
    ) -> list[str]:
        self.asked = [*getattr(self, "asked", []), wanted]
        raise httpx.ConnectError("connection refused")


async def test_an_actuator_that_fails_leaves_the_decision_readable(
    queue: JobQueue, registry: Registry, policy: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing = Unreachable()
    monkeypatch.setattr(autoscale, "actuator", lambda settings, pool: failing)
    await submit(queue)
    await tick(queue, registry, SETTINGS, SETTINGS.described)
    assert failing.asked == [1]
    assert (await scale_of(queue)).wanted == 1

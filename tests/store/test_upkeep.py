"""Upkeep: rounds in the queue, records nobody needs, append-only files; the maintenance tasks."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gateway.maintenance import broker, liveness_file, process
from gateway.maintenance import maintenance_tasks as tasks_module
from gateway.maintenance.maintenance_tasks import AUTOSCALE, PRUNE, REPAIR, MaintenanceTasks
from shared.platform.metrics.losses import UpkeepMetrics
from shared.platform.tasks import end
from shared.store import keys, upkeep
from shared.store.errors import StoreUnavailable
from shared.store.fleet_registry import Registry
from shared.store.servers import Servers
from shared.store.upkeep import KEPT_S, Upkeep, prune, rewrite_logs
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import eventually
from tests.store.conftest import POOL, TENANT, Case, make_job, open_case
from tests.store.test_fleet import INFO

METRICS = UpkeepMetrics(CollectorRegistry())


async def round_of(case: Case, metrics: UpkeepMetrics = METRICS) -> None:
    """A round, whoever had the lock."""
    case.server.delete(keys.of("upkeep", 0))
    await Upkeep(case.queue, metrics).round(0)


async def test_a_round_leaves_nothing_for_the_next_however_much_there_is(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(upkeep, "_AT_ONCE", 3)
    silent = await case.submit_all([make_job() for _ in range(250)])
    worker = case.worker(room=1000)
    jobs = await worker.claim()
    case.sleep(2.5)
    late = [await case.submit(deadline_s=1e-6) for _ in range(7)]
    gone = {f"job:job_{n:027x} 1 {TENANT}": 1 for n in range(7)}
    case.server.zadd(f"{case.base}expiring", gone)
    case.server.zadd(keys.of("jobs", 0, TENANT), {member[4:].split()[0]: 1 for member in gone})
    registry = CollectorRegistry()
    await round_of(case, UpkeepMetrics(registry))
    assert {await case.state(job) for job in jobs} == {"queued"}
    assert {await case.state(job) for job in late} == {"expired"}
    counted = {
        name: registry.get_sample_value("flotilla_reaped_jobs_total", {"state": name})
        for name in ("queued", "expired", "failed")
    }
    assert counted == {"queued": len(silent), "expired": 7, "failed": 0}
    assert registry.get_sample_value("flotilla_lost_workers_total") == 1
    assert case.server.zcard(keys.of("jobs", 0, TENANT)) == 257


async def test_a_sweep_removes_what_is_gone_and_nothing_else(case: Case) -> None:
    expiring, listed = f"{case.base}expiring", keys.of("jobs", 0, TENANT)
    ended, running = [await case.submit(ttl_s=600.0) for _ in range(4)], await case.submit()
    for job in ended:
        await case.queue.cancel(TENANT, job.id)
    members = [member.decode() for member in case.server.zrange(expiring, 0, -1)]
    case.server.delete(*[keys.job(0, job.id) for job in ended[:3]])
    case.server.zrem(listed, ended[0].id)  # deleted, and not expired
    used = f"conv_{7:035x}"
    case.server.hset(keys.of("conversation", 0, used), mapping={"tenant": TENANT})
    case.server.expire(keys.of("conversation", 0, used), 600)
    conversation, before = f"conversation:{used} 1 {TENANT}", f"job:{running.id} 1 {TENANT}"
    due = {conversation: 1.5, before: 2.5}  # their ids are used again
    case.server.zadd(expiring, due | {each: n for n, each in enumerate(members[:3])})
    assert [await case.queue.sweep(0, 2) for _ in range(4)] == [2, 2, 1, 0]
    assert case.server.zrange(listed, 0, -1) == [ended[3].id.encode(), running.id.encode()]
    assert {m.decode() for m in case.server.zrange(expiring, 0, -1)} == {conversation, members[3]}
    await case.queue.cancel(TENANT, running.id)
    assert case.server.zcard(expiring) == 3


async def test_one_process_runs_a_round_of_each_shard(one: RedisServer) -> None:
    async with open_case(one, shards=2, own_clock=False) as case:
        case.server.set(keys.of("upkeep", 0), 1)
        jobs = [
            await case.submit(id=f"job_{shard:03x}{shard:024x}", deadline_s=1e-6)
            for shard in (0, 1)
        ]
        for shard in (0, 1):
            await Upkeep(case.queue, METRICS).round(shard)
        assert [await case.state(job) for job in jobs] == ["queued", "expired"]
        assert 0 < case.server.pttl(keys.of("upkeep", 1)) <= 150
        case.server.delete(keys.of("upkeep", 0))
        task = asyncio.create_task(Upkeep(case.queue, METRICS).run())

        async def has_expired() -> bool:
            return await case.state(jobs[0]) == "expired"

        await eventually(has_expired, "upkeep that runs comes to it")
        await end([task])


# --- records that nobody needs ---


async def test_stale_records_are_removed(live: Case, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "flotilla.maintenance")
    registry = Registry(live.queue.servers.primary)
    await registry.register_models("served", [{"id": "m"}])
    await live.submit()  # the fleet has POOL now
    live.server.sadd(keys.fleet("workers"), "w-gone")
    scales = keys.first("documents", "scale")
    for pool in ("served", POOL, "named", "forgotten"):
        live.server.hset(scales, pool, "x")
    live.server.hset(keys.fleet("maintenance"), mapping={"repair": 1, "forgotten": 1})
    for line in ("removed stale records: 1 worker record, 1 scale record, 1 task record", ""):
        await prune(live.queue, registry, ["named"], ["repair"])
        assert line in caplog.text
        assert line or not caplog.text
        caplog.clear()
    assert live.server.smembers(keys.fleet("workers")) == set()
    assert set(live.server.hkeys(scales)) == {b"served", POOL.encode(), b"named"}
    assert live.server.hkeys(keys.fleet("maintenance")) == [b"repair"]


async def test_a_model_is_forgotten_7_days_after_its_last_worker_and_job(live: Case) -> None:
    registry = Registry(live.queue.servers.primary)
    served = replace(INFO, pool="served")
    for name in ("unused", "scaled", POOL, "served"):
        await registry.declare_models(name, [{"id": name}])
    await registry.announce(served)
    job = await live.submit()
    for passed_s, scaled, left in (
        (0, ["scaled"], {"unused", "scaled", POOL, "served"}),
        (KEPT_S - 60, ["scaled"], {"unused", "scaled", POOL, "served"}),
        (120, ["scaled"], {"scaled", POOL, "served"}),
        (KEPT_S, [], {"scaled", POOL, "served"}),  # from now on it is not scaled
        (KEPT_S + 60, [], {POOL, "served"}),  # one has a job, and one a worker
    ):
        for name, at in live.server.hgetall(keys.fleet("unused_models")).items():
            live.server.hset(keys.fleet("unused_models"), name, float(at) - passed_s)
        await prune(live.queue, registry, scaled, [])
        assert set(await registry.models()) == left
    await registry.leave(served.id)
    await live.queue.cancel(job.tenant, job.id)
    await prune(live.queue, registry, [], [])
    assert set(live.server.hkeys(keys.fleet("unused_models"))) == {POOL.encode(), b"served"}
    await registry.announce(served)
    await prune(live.queue, registry, [], [])
    assert live.server.hkeys(keys.fleet("unused_models")) == [POOL.encode()]


async def test_a_part_of_a_transaction_is_not_carried_out_at_the_next_start(
    own_redis: RedisServer,
) -> None:
    """Redis was killed while it wrote a transaction to its append-only file."""
    with own_redis.client() as client:
        client.set("before", 1)
        folder = Path(str(client.config_get("dir")["dir"]))
    own_redis.stop()
    (log,) = list(folder.rglob("*.incr.aof"))  # noqa: ASYNC240
    multi, first = b"*1\r\n$5\r\nMULTI\r\n", b"*3\r\n$3\r\nSET\r\n$4\r\npart\r\n$1\r\n1\r\n"
    log.write_bytes(log.read_bytes() + multi + first + first[:20])
    own_redis.start()
    async with Servers(own_redis.url) as servers:
        for _ in range(2):
            await rewrite_logs(servers)

        async def is_written() -> bool:
            found = await servers.primary.info("persistence")
            return bool(found["aof_last_rewrite_time_sec"] >= 0)

        await eventually(is_written, "the append-only file is written anew")
        assert not await servers.primary.exists("part")
        await servers.primary.set("after", 1)
    own_redis.stop(kill=True)
    own_redis.start()
    with own_redis.client() as client:
        assert sorted(client.keys("[abp]*")) == [b"after", b"before"]


# --- the maintenance tasks ---


@pytest.fixture(autouse=True)
def own_pulse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(liveness_file.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(process, "_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(process, "OVERDUE_S", 0.5)


@pytest.fixture
async def tasks(alone: Case, one: RedisServer) -> AsyncIterator[MaintenanceTasks]:
    settings = Settings(redis_url=one.url, autoscale="m=0:1")
    tasks = MaintenanceTasks(settings, settings.described)
    yield tasks
    await tasks.close()


async def test_two_processes_run_a_task_once_a_round(
    alone: Case, one: RedisServer, tasks: MaintenanceTasks
) -> None:
    settings, store = Settings(redis_url=one.url), alone.server
    other = MaintenanceTasks(settings, settings.described)
    for name in (REPAIR, PRUNE):
        for _ in range(2):
            ran = await asyncio.gather(*(each.run_once_per_round(name) for each in (tasks, other)))
            assert sorted(ran) == [False, True]
            assert 0 < store.pttl(keys.fleet("maintenance_lock", name)) < 600_000
            store.delete(keys.fleet("maintenance_lock", name))  # the next round
    await other.close()
    now_s, _ = store.time()
    done = {name.decode(): int(at) for name, at in store.hgetall(keys.fleet("maintenance")).items()}
    assert set(done) == {REPAIR, PRUNE}
    assert all(now_s - 60 <= at <= now_s for at in done.values())
    assert 0 <= (await tasks.runs.seconds_since(REPAIR) or 0) < 60
    assert await tasks.runs.seconds_since(AUTOSCALE) is None


async def test_what_becomes_of_a_task_that_fails(
    alone: Case, tasks: MaintenanceTasks, monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:  # fmt: skip
    """After a lost connection it is tried again; else it is logged, and not recorded as done."""
    errors: list[Exception] = []

    async def fail() -> None:
        if errors:
            raise errors.pop()

    async def hang() -> None:
        await asyncio.sleep(60)

    store = alone.server
    monkeypatch.setattr(tasks_module, "TIMEOUT_S", 0.5)
    for work, line in ((fail, "repair: failed"), (hang, "repair: cancelled after 0.5 s")):
        errors[:] = [ZeroDivisionError()]
        monkeypatch.setitem(tasks._work, REPAIR, work)  # type: ignore[index]
        await tasks.run(REPAIR)
        assert line in caplog.text
        assert 0 < store.pttl(keys.fleet("maintenance_lock", REPAIR)) <= 30_000
        store.delete(keys.fleet("maintenance_lock", REPAIR))
    assert store.hgetall(keys.fleet("maintenance")) == {}
    errors[:] = [StoreUnavailable("the connection is gone")]
    monkeypatch.setitem(tasks._work, REPAIR, fail)  # type: ignore[index]
    await tasks.run(REPAIR)
    assert store.hkeys(keys.fleet("maintenance")) == [REPAIR.encode()]


class Celery:
    """Counts how often it was killed."""

    kills = 0

    def kill(self) -> None:
        self.kills += 1


@asynccontextmanager
async def watching(settings: Settings) -> AsyncIterator[Celery]:
    """Run `process.watch` meanwhile."""
    celery, tasks = Celery(), MaintenanceTasks(settings, settings.described)
    task = asyncio.create_task(process.watch(settings, tasks, celery))  # type: ignore[arg-type]
    yield celery
    await end([task])
    await tasks.close()


async def test_celery_is_killed_when_repairs_are_overdue_although_redis_answers(
    own_redis: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings(redis_url=own_redis.url)
    async with watching(settings) as celery:
        await eventually(lambda: celery.kills, "it is killed")
        assert liveness_file.problem(settings) != "", "the health check fails meanwhile"
        own_redis.stop(kill=True)
        await eventually(lambda: liveness_file.problem(settings) == "", "it waits for Redis")
    assert "no repair for 0 s although Redis answers" in caplog.text


async def test_celery_refuses_a_cluster(tmp_path: Path) -> None:
    server = RedisServer(tmp_path, cluster_enabled="yes")
    while server.port > 55_000:  # a cluster has a second port, 10,000 above
        server = RedisServer(tmp_path, cluster_enabled="yes")
    server.start()
    try:
        problem = await broker.problem(Settings(redis_url=server.url))
        assert "Celery can't use a cluster" in problem
    finally:
        server.stop()

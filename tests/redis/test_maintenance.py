"""The maintenance process on a real Redis: in steps, once a round, and without Celery."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from redis import Redis

from gateway.maintenance import async_runner as bridge_module
from gateway.maintenance import housekeeping, liveness_file, scan
from gateway.maintenance.async_runner import AsyncRunner
from gateway.maintenance.broker import refusal
from gateway.maintenance.housekeeping import Housekeeping
from gateway.maintenance.schedule import AUTOSCALE, PRUNE, REPAIR, Schedule
from shared.fleet.registry import Registry
from shared.platform.settings import Settings
from shared.protocol import keys
from shared.protocol.job import new_job_id
from shared.protocol.lanes import DEFAULT
from shared.protocol.scripts.submit import pack_job
from shared.queue.job_queue import JobQueue
from tests.redis.conftest import POOL, make_job, open_queue, submit, take
from tests.redis_server import RedisServer
from tests.waiting import wait_for

STREAM = keys.queue(0, POOL, DEFAULT)


@pytest.fixture(autouse=True)
def own_pulse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(liveness_file.tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.fixture
def told(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the maintenance process logs."""
    log = logging.getLogger("flotilla")
    before = log.propagate
    log.propagate = True
    with caplog.at_level(logging.INFO, "flotilla"):
        yield caplog
    log.propagate = before


# --- in steps ---


async def test_a_walk_goes_in_small_steps_and_past_nothing(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scan, "AT_ONCE", 10)
    # More than Redis keeps in one piece, of which it always gives the whole.
    jobs = {(await submit(queue, deadline_s=60)).id.encode() for _ in range(300)}
    steps = [step async for step in scan.scan_server(queue)]
    for word in (keys.JOB, keys.JOBS, keys.WAITING, keys.DEADLINES):
        seen = {member for step in steps if step.word == word for member in step.members}
        assert seen == jobs, word
    entries = [member for step in steps if step.word == keys.QUEUE for member in step.members]
    assert len(set(entries)) == len(entries) == 300
    assert max(len(step.members) for step in steps) < 40


@pytest.mark.parametrize(("bound", "value"), [("STEPS_A_ROUND", 5), ("ROUND_S", 0.0)])
async def test_a_round_is_bounded_and_the_next_goes_on(
    queue: JobQueue,
    store: Redis,
    monkeypatch: pytest.MonkeyPatch,
    told: pytest.LogCaptureFixture,
    bound: str,
    value: float,
) -> None:
    monkeypatch.setattr(scan, "AT_ONCE", 10)
    monkeypatch.setattr(housekeeping, bound, value)
    for _ in range(300):
        await submit(queue)
    store.delete(STREAM)
    keeper = Housekeeping(queue, Registry(queue.servers.primary))
    rounds = []
    while sum(rounds) < 300:
        assert len(rounds) < 200
        before = store.xlen(STREAM)
        await keeper.repair()
        rounds.append(store.xlen(STREAM) - before)
    assert max(rounds) < 100
    assert len(await take(queue, 1000)) == 300
    assert "repaired: " in told.text
    assert re.search(r"repaired: \d+ entries \(job_\w+, job_\w+, job_\w+, .*\)", told.text)


async def test_a_walk_that_broke_off_begins_again(
    queue: JobQueue, store: Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    keeper = Housekeeping(queue, Registry(queue.servers.primary))
    await submit(queue)
    with monkeypatch.context() as patch:
        patch.setattr(queue, "repair", None)
        with pytest.raises(TypeError):
            await keeper.repair()
    store.delete(STREAM)
    await keeper.repair()
    assert store.xlen(STREAM) == 1


# --- what nobody needs any more ---


async def test_records_that_nobody_needs_are_taken_out(
    queue: JobQueue, store: Redis, told: pytest.LogCaptureFixture
) -> None:
    registry = Registry(queue.servers.primary)
    await registry.register_models("served", [{"id": "m"}])
    await submit(queue)  # POOL is a pool by that
    store.sadd(keys.WORKERS, "w-gone")
    kept = [
        make(pool)
        for pool in ("served", POOL, "named")
        for make in (keys.scale, keys.scaling_events)
    ]
    for key in [*kept, keys.scale("forgotten"), keys.scaling_events("forgotten")]:
        store.set(key, "x")
    store.hset(keys.MAINTENANCE_RUNS, mapping={REPAIR: 1, "forgotten": 1})
    keeper = Housekeeping(queue, registry)
    await keeper.prune(["named"], [REPAIR])
    assert store.smembers(keys.WORKERS) == set()
    assert {key.decode() for key in store.keys("flotilla:{fleet}:scal*")} == set(kept)
    assert store.hkeys(keys.MAINTENANCE_RUNS) == [REPAIR.encode()]
    line = "removed stale records: 1 worker record, 2 scale records, 1 task record"
    assert line in told.text
    told.clear()
    await keeper.prune(["named"], [REPAIR])
    assert told.text == ""


# --- once a round ---


async def test_two_processes_do_a_task_once_a_round(redis_url: str, store: Redis) -> None:
    settings = Settings(redis_url=redis_url)
    async with open_queue(redis_url) as one, open_queue(redis_url) as two:
        rotas = [Schedule(settings, one), Schedule(settings, two)]
        for name in (REPAIR, PRUNE):
            assert sorted(await asyncio.gather(*(r.once(name) for r in rotas))) == [False, True]
            assert 0 < store.pttl(keys.maintenance_lock(name)) < 600_000
            store.delete(keys.maintenance_lock(name))  # the next round
            assert sorted(await asyncio.gather(*(r.once(name) for r in rotas))) == [False, True]
    now_s, _ = store.time()
    done = {name.decode(): int(at) for name, at in store.hgetall(keys.MAINTENANCE_RUNS).items()}
    assert set(done) == {REPAIR, PRUNE}
    assert all(now_s - 60 <= at <= now_s for at in done.values())


async def test_a_task_that_fails_has_not_been_done(
    queue: JobQueue, store: Redis, redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise OSError("no Docker here")

    monkeypatch.setattr("gateway.autoscaler.tick.tick", fail)
    schedule = Schedule(Settings(redis_url=redis_url, autoscale="m=0:1"), queue)
    with pytest.raises(OSError, match="no Docker here"):
        await schedule.once(AUTOSCALE)
    assert store.hgetall(keys.MAINTENANCE_RUNS) == {}
    assert 0 < store.pttl(keys.maintenance_lock(AUTOSCALE)) <= 2000


async def test_the_autoscaler_ticks_where_it_is_asked_for(
    queue: JobQueue, store: Redis, redis_url: str
) -> None:
    schedule = Schedule(Settings(redis_url=redis_url, autoscale="m=0:1"), queue)
    assert await schedule.once(AUTOSCALE)
    assert store.exists(keys.scale("m"))


# --- from blocking tasks ---


def bridge(url: str, longest_s: float = 20.0, **settings: str) -> AsyncRunner:
    return AsyncRunner(Settings(redis_url=url, **settings), longest_s, on_stuck=lambda: None)  # type: ignore[arg-type]


def test_maintenance_tasks_run_on_one_loop(redis_url: str, store: Redis) -> None:
    store.hset(keys.job(0, job_id := new_job_id(1)), mapping=a_queued_job())
    performer = bridge(redis_url)
    performer.start()
    try:
        connections = []
        for _ in range(5):
            store.delete(keys.maintenance_lock(REPAIR))
            performer.perform(REPAIR)
            connections.append(len(store.client_list()))
        assert store.zscore(keys.waiting(0, POOL, DEFAULT), job_id) == 1
        assert len(set(connections)) == 1, "a connection for each task"
        assert liveness_file.problem(Settings(redis_url=redis_url)) == ""
        performer.interrupt()
        store.delete(keys.maintenance_lock(REPAIR))
        performer.perform(REPAIR)
        assert not store.exists(keys.maintenance_lock(REPAIR)), "it had been told to do no more"
    finally:
        performer.close()


def test_without_a_place_for_temporary_files_only_the_health_check_fails(
    redis_url: str, store: Redis, monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(liveness_file.tempfile, "gettempdir", none)
    performer = bridge(redis_url)
    performer.start()
    try:
        for name in (REPAIR, PRUNE):
            performer.perform(name)
        assert set(store.hkeys(keys.MAINTENANCE_RUNS)) == {REPAIR.encode(), PRUNE.encode()}
    finally:
        performer.close()
    assert told.text.count("the health check will fail: No usable temporary directory") == 1
    assert liveness_file.problem(Settings(redis_url=redis_url)).startswith("no sign of life yet: ")


def a_queued_job() -> dict[str, str | bytes | int]:
    return {
        "state": "queued",
        "request": pack_job(make_job())[1],
        "entry": "1-1",
        "created_us": 1,
    }


def test_whatever_goes_wrong_celery_does_not_hear_of_it(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch, told: pytest.LogCaptureFixture
) -> None:
    async def crash(*_: object) -> None:
        raise ZeroDivisionError

    async def dawdle(*_: object) -> None:
        await asyncio.sleep(60)

    performer = bridge(own_redis.url, longest_s=2.0, autoscale="m=0:1")
    performer.start()
    try:
        for tick, line in ((crash, "autoscale: not done"), (dawdle, "autoscale: not done in 2 s")):
            monkeypatch.setitem(performer._schedule._maintenance, AUTOSCALE, tick)  # type: ignore[index]
            with own_redis.client() as client:
                client.delete(keys.maintenance_lock(AUTOSCALE))
            performer.perform(AUTOSCALE)
            assert line in told.text
        own_redis.stop(kill=True)
        performer.perform(REPAIR)
        assert "repair: not done in this round: " in told.text
        own_redis.start()  # the connections from before are dead
        performer.perform(REPAIR)
        with own_redis.client() as client:
            assert client.hexists(keys.MAINTENANCE_RUNS, REPAIR)
    finally:
        performer.close()


def test_what_runs_is_given_up_at_once(redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    async def dawdle(*_: object) -> None:
        begun.set()
        await asyncio.sleep(60)

    performer = bridge(redis_url)
    monkeypatch.setitem(performer._schedule._maintenance, REPAIR, dawdle)  # type: ignore[index]
    performer.start()
    working = threading.Thread(target=performer.perform, args=(REPAIR,))
    working.start()
    try:
        assert begun.wait(20)
        performer.interrupt()
        working.join(20)
        assert not working.is_alive()
    finally:
        performer.close()


def test_what_is_just_beginning_is_given_up_too(
    redis_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    performer = bridge(redis_url)
    begin = asyncio.run_coroutine_threadsafe

    async def dawdle(*_: object) -> None:
        await asyncio.sleep(60)

    def interrupted(work: Any, loop: asyncio.AbstractEventLoop) -> Any:
        doing = begin(work, loop)
        performer.interrupt()  # a signal, before `perform` has noted what it does
        return doing

    monkeypatch.setitem(performer._schedule._maintenance, REPAIR, dawdle)  # type: ignore[index]
    performer.start()
    working = threading.Thread(target=performer.perform, args=(REPAIR,))
    try:
        with monkeypatch.context() as patch:
            patch.setattr(bridge_module.asyncio, "run_coroutine_threadsafe", interrupted)
            working.start()
            working.join(20)
        assert not working.is_alive()
    finally:
        performer.close()


def test_silence_is_told_apart_from_an_absent_redis(
    own_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Celery that has stopped listening must not look as if it lived, nor Redis be blamed on it."""
    monkeypatch.setattr(bridge_module, "STUCK_S", 0.2)
    monkeypatch.setattr(bridge_module, "_LOOK_S", 0.05)
    settings = Settings(redis_url=own_redis.url)
    stuck = threading.Event()
    performer = AsyncRunner(settings, 5.0, stuck.set)
    own_redis.stop(kill=True)
    performer.start()
    try:
        since = performer._last
        wait_for(lambda: performer._last > since, "it waits for Redis")
        assert not stuck.is_set()
        assert liveness_file.problem(settings) == ""
        own_redis.start()
        assert stuck.wait(20), "nothing has come although Redis answers"
    finally:
        performer.close()


# --- a Redis that will not do ---


async def test_a_redis_without_a_database_for_celery(
    redis_url: str, own_redis: RedisServer
) -> None:
    assert await refusal(Settings(redis_url=redis_url)) == ""
    last = redis_url.replace("/0", "/15")
    said = await refusal(Settings(redis_url=last))
    assert said.startswith("FLOTILLA_MAINTENANCE_REDIS_URL: ")
    assert "DB index is out of range" in said
    assert await refusal(Settings(redis_url=last, maintenance_redis_url=redis_url)) == ""
    own_redis.stop(kill=True)
    assert await refusal(Settings(redis_url=own_redis.url)) == ""  # it may come back


async def test_a_cluster_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    while server.port > 55_000:  # a cluster has a second port, 10,000 above
        server = RedisServer(tmp_path)
    server.options = {"cluster-enabled": "yes"}
    server.start()
    try:
        said = await refusal(Settings(redis_url=server.url))
        assert "Celery can't use a cluster" in said
    finally:
        server.stop()

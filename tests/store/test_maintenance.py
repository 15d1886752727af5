"""The maintenance tasks on a real Redis: once a round, and their health check."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from redis import Redis

from gateway.maintenance import broker, liveness_file, process
from gateway.maintenance import maintenance_tasks as tasks_module
from gateway.maintenance.maintenance_tasks import AUTOSCALE, PRUNE, REPAIR, MaintenanceTasks
from shared.store import keys
from shared.store.errors import StoreUnavailable
from tests.harness.servers import RedisServer
from tests.harness.settings import Settings
from tests.harness.waiting import eventually


@pytest.fixture(autouse=True)
def own_pulse(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(liveness_file.tempfile, "gettempdir", lambda: str(tmp_path))


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What the maintenance process logs."""
    log = logging.getLogger("flotilla")
    before = log.propagate
    log.propagate = True
    with caplog.at_level(logging.INFO, "flotilla"):
        yield caplog
    log.propagate = before


# --- once a round ---


@pytest.fixture
async def tasks(redis_url: str) -> AsyncIterator[MaintenanceTasks]:
    settings = Settings(redis_url=redis_url, autoscale="m=0:1")
    tasks = MaintenanceTasks(settings, settings.described)
    yield tasks
    await tasks.close()


async def test_two_processes_run_a_task_once_a_round(
    redis_url: str, store: Redis, tasks: MaintenanceTasks
) -> None:
    settings = Settings(redis_url=redis_url)
    other = MaintenanceTasks(settings, settings.described)
    for name in (REPAIR, PRUNE):
        for _ in range(2):
            ran = await asyncio.gather(*(each.run_once_per_round(name) for each in (tasks, other)))
            assert sorted(ran) == [False, True]
            assert 0 < store.pttl(keys.maintenance_lock(name)) < 600_000
            store.delete(keys.maintenance_lock(name))  # the next round
    await other.close()
    now_s, _ = store.time()
    done = {name.decode(): int(at) for name, at in store.hgetall(keys.MAINTENANCE_RUNS).items()}
    assert set(done) == {REPAIR, PRUNE}
    assert all(now_s - 60 <= at <= now_s for at in done.values())
    assert 0 <= (await tasks.runs.seconds_since(REPAIR) or 0) < 60
    assert await tasks.runs.seconds_since(AUTOSCALE) is None


async def test_a_task_that_fails_is_logged_and_not_recorded_as_done(
    store: Redis,
    tasks: MaintenanceTasks,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    async def fail() -> None:
        raise ZeroDivisionError

    async def hang() -> None:
        await asyncio.sleep(60)

    monkeypatch.setattr(tasks_module, "TIMEOUT_S", 0.5)
    for work, line in ((fail, "repair: failed"), (hang, "repair: cancelled after 0.5 s")):
        monkeypatch.setitem(tasks._work, REPAIR, work)  # type: ignore[index]
        await tasks.run(REPAIR)
        assert line in logged.text
        assert 0 < store.pttl(keys.maintenance_lock(REPAIR)) <= 30_000
        store.delete(keys.maintenance_lock(REPAIR))
    assert store.hgetall(keys.MAINTENANCE_RUNS) == {}


async def test_after_a_lost_connection_a_task_is_tried_again(
    store: Redis, tasks: MaintenanceTasks, monkeypatch: pytest.MonkeyPatch
) -> None:
    errors = [StoreUnavailable("the connection is gone")]

    async def work() -> None:
        if errors:
            raise errors.pop()

    monkeypatch.setitem(tasks._work, REPAIR, work)  # type: ignore[index]
    await tasks.run(REPAIR)
    assert store.hkeys(keys.MAINTENANCE_RUNS) == [REPAIR.encode()]


# --- the liveness file, and Celery that has stopped ---


class Celery:
    """Counts how often it was killed."""

    kills = 0

    def kill(self) -> None:
        self.kills += 1


async def until(condition: Callable[[], object], what: str) -> None:
    async def check() -> object:
        return condition()

    await eventually(check, what)


@asynccontextmanager
async def watching(settings: Settings) -> AsyncIterator[Celery]:
    """Run `process.watch` meanwhile."""
    celery, tasks = Celery(), MaintenanceTasks(settings, settings.described)
    task = asyncio.create_task(process.watch(settings, tasks, celery))  # type: ignore[arg-type]
    yield celery
    task.cancel()
    await tasks.close()


@pytest.fixture
def quick_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "_CHECK_INTERVAL_S", 0.05)
    monkeypatch.setattr(process, "OVERDUE_S", 0.5)


@pytest.mark.usefixtures("quick_checks")
async def test_celery_is_killed_when_repairs_are_overdue_although_redis_answers(
    own_redis: RedisServer, logged: pytest.LogCaptureFixture
) -> None:
    settings = Settings(redis_url=own_redis.url)
    async with watching(settings) as celery:
        await until(lambda: celery.kills, "it is killed")
        assert liveness_file.problem(settings) != "", "the health check fails meanwhile"
        own_redis.stop(kill=True)
        await until(lambda: liveness_file.problem(settings) == "", "it waits for Redis")
    assert "no repair for 0 s although Redis answers" in logged.text


@pytest.mark.usefixtures("quick_checks")
async def test_a_process_whose_repairs_fail_is_alive(
    redis_url: str,
    tasks: MaintenanceTasks,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    async def work() -> None:
        raise StoreUnavailable("one of several servers is away")

    monkeypatch.setitem(tasks._work, REPAIR, work)  # type: ignore[index]
    settings = Settings(redis_url=redis_url)
    await tasks.run(REPAIR)
    assert "repair: failed in this round: one of several servers is away" in logged.text
    async with watching(settings) as celery:
        await until(lambda: liveness_file.problem(settings) == "", "it is alive")
        await asyncio.sleep(3 * process.OVERDUE_S)
        assert celery.kills == 0


@pytest.mark.usefixtures("quick_checks")
async def test_repairs_may_be_late_while_only_celerys_redis_is_away(
    redis_url: str, own_redis: RedisServer
) -> None:
    own_redis.stop(kill=True)
    settings = Settings(redis_url=redis_url, maintenance_redis_url=own_redis.url)
    async with watching(settings) as celery:
        await until(lambda: liveness_file.problem(settings) == "", "it is alive")
        assert celery.kills == 0


@pytest.mark.usefixtures("quick_checks")
async def test_without_a_folder_for_temporary_files_only_the_health_check_fails(
    redis_url: str,
    tasks: MaintenanceTasks,
    monkeypatch: pytest.MonkeyPatch,
    logged: pytest.LogCaptureFixture,
) -> None:
    def none() -> str:
        raise FileNotFoundError("No usable temporary directory found")

    monkeypatch.setattr(liveness_file.tempfile, "gettempdir", none)
    monkeypatch.setattr(process, "OVERDUE_S", 60.0)
    await tasks.run(REPAIR)
    settings = Settings(redis_url=redis_url)
    async with watching(settings) as celery:
        await until(lambda: "the health check will fail" in logged.text, "it is logged")
    assert logged.text.count("the health check will fail: No usable temporary directory") == 1
    assert liveness_file.problem(settings).startswith("the liveness file was never touched: ")
    assert celery.kills == 0


# --- a Redis that Celery can't use ---


async def test_a_cluster_is_refused(tmp_path: Path) -> None:
    server = RedisServer(tmp_path)
    while server.port > 55_000:  # a cluster has a second port, 10,000 above
        server = RedisServer(tmp_path)
    server.options = {"cluster-enabled": "yes"}
    server.start()
    try:
        problem = await broker.problem(Settings(redis_url=server.url))
        assert "Celery can't use a cluster" in problem
    finally:
        server.stop()

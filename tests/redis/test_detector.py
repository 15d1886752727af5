"""The detector and `reclaim`: the jobs of a worker that has lost its connection, and no others."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Set

import pytest
import redis as sync_redis
from prometheus_client import CollectorRegistry
from redis import Redis

from shared.job.job import LeasedJob
from shared.job.replies import Fenced
from shared.platform.metrics.losses import LostWorkerMetrics, ReaperMetrics
from shared.platform.tasks import end
from shared.store.redis import detector, keys
from shared.store.redis.detector import INTERVAL_S, Detector, interval_s
from shared.store.redis.disconnects import RETURN_S
from shared.store.redis.job_queue import JobQueue
from shared.store.redis.lost_workers import LostWorkers
from shared.store.redis.scripts.emit import make_step
from tests.harness.servers import RedisServer
from tests.harness.waiting import eventually
from tests.redis.conftest import (
    LEASE_S,
    POOL,
    WORKER,
    ChannelSubscriber,
    claim,
    claim_one,
    lease,
    next_fence_token,
    open_queue,
    submit,
)

OTHER = "w-2"
FAST_S = 5.0
"""Far longer than a detection takes, far shorter than a lease."""
SILENCE_S = 1.0
PUBSUB_STATS = ("cmdstat_pubsub|channels", "cmdstat_pubsub|shardchannels")


class Detectors:
    """Running detectors, and how often they have looked."""

    def __init__(self, *queues: JobQueue) -> None:
        self.registry = CollectorRegistry()
        lost = LostWorkerMetrics(self.registry, ReaperMetrics(self.registry))
        self._looks = {
            (number, shards): 0
            for number, queue in enumerate(queues)
            for shards in queue.servers.groups
        }
        self.runs = [
            Detector(
                queue,
                LostWorkers(queue, lost),
                SILENCE_S,
                functools.partial(self._looked, number),
            ).run()
            for number, queue in enumerate(queues)
        ]

    def _looked(self, number: int, shards: range, _channels: Set[str]) -> None:
        self._looks[number, shards] += 1

    async def looked(self, times: int = 3) -> None:
        """Wait until each of them has looked so often at each of its servers from now on.

        Two are enough to miss a worker, and `reclaim` has ended before the next one.
        """
        before = dict(self._looks)

        async def check() -> bool:
            return all(self._looks[each] >= before[each] + times for each in before)

        await eventually(check, "all have looked")


@contextlib.asynccontextmanager
async def detecting(*queues: JobQueue) -> AsyncIterator[Detectors]:
    """A running detector for each queue, as in as many gateways."""
    detectors = Detectors(*queues)
    tasks = [asyncio.create_task(run) for run in detectors.runs]
    try:
        yield detectors
    finally:
        await end(tasks)


def subscribe(store: Redis, worker: str = WORKER) -> ChannelSubscriber:
    return ChannelSubscriber(store, keys.control_channel(worker))


async def state(queue: JobQueue, job_id: str) -> str:
    job = await queue.get(job_id)
    assert job is not None
    return str(job.state)


async def is_queued(queue: JobQueue, job_id: str) -> bool:
    return await state(queue, job_id) == "queued"


async def all_are_queued(queue: JobQueue, *jobs: LeasedJob) -> None:
    async def check() -> bool:
        return {await state(queue, job.id) for job in jobs} == {"queued"}

    await eventually(check, "all are queued again", FAST_S)


async def test_jobs_of_a_worker_without_a_connection_are_queued_again(
    queue: JobQueue, store: Redis
) -> None:
    jobs = [await lease(queue) for _ in range(3)]
    await submit(queue)
    kept = await claim_one(queue, OTHER)
    assert await queue.reclaim(0, WORKER) == {job.id: "queued" for job in jobs}
    assert await queue.reclaim(0, WORKER) == {}
    assert await state(queue, kept.id) == "in_progress"
    assert [each.id for each in await claim(queue, worker=OTHER)] == [job.id for job in jobs]


async def test_nothing_is_taken_from_a_connected_worker(
    queue: JobQueue, control: ChannelSubscriber
) -> None:
    job = await lease(queue)
    assert await queue.reclaim(0, WORKER) == {}
    assert await state(queue, job.id) == "in_progress"


async def test_a_worker_whose_jobs_were_taken_can_not_write(queue: JobQueue) -> None:
    token = await next_fence_token(queue)
    await lease(queue)
    await queue.reclaim(0, WORKER)
    with pytest.raises(Fenced):
        await queue.emit(0, WORKER, token, make_step([], []))


async def test_a_worker_that_stands_still_loses_its_jobs(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    beat = keys.heartbeat_channel(WORKER, 7)
    heartbeat = ChannelSubscriber(store, beat)
    job = await lease(queue)
    async with detecting(queue) as detectors:
        await eventually(lambda: is_queued(queue, job.id), "it is queued again", FAST_S)
        again = ChannelSubscriber(store, keys.heartbeat_channel(WORKER, 8))
        heartbeat.close()
        alarms = "flotilla_false_alarms_total"

        async def counted() -> bool:
            return detectors.registry.get_sample_value(alarms) == 1

        await eventually(counted, "the false alarm is counted", FAST_S)
    again.close()


async def test_nothing_is_taken_from_a_worker_with_another_heartbeat(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    job = await lease(queue)
    heartbeat = ChannelSubscriber(store, keys.heartbeat_channel(WORKER, 8))
    assert await queue.reclaim(0, WORKER, heartbeat=keys.heartbeat_channel(WORKER, 7)) == {}
    assert await state(queue, job.id) == "in_progress"
    taken = await queue.reclaim(0, WORKER, heartbeat=keys.heartbeat_channel(WORKER, 8))
    assert taken == {job.id: "queued"}
    heartbeat.close()


async def test_a_silent_worker_that_blocks_for_work_swallows_no_wake_up(
    queue: JobQueue, store: Redis, control: ChannelSubscriber
) -> None:
    await lease(queue)
    heartbeat = ChannelSubscriber(store, keys.heartbeat_channel(WORKER, 0))
    store.delete(keys.wake_ups(0, POOL))
    await queue.reclaim(0, WORKER, heartbeat=keys.heartbeat_channel(WORKER, 0))
    assert store.llen(keys.wake_ups(0, POOL)) == 2  # one for it, one for a worker that runs
    heartbeat.close()


async def test_its_advertised_slots_are_withdrawn(queue: JobQueue, store: Redis) -> None:
    await submit(queue)
    await claim(queue, slots=5)
    assert store.zcard(keys.advertised(0, POOL)) == 1
    await queue.reclaim(0, WORKER)
    assert store.zcard(keys.advertised(0, POOL)) == 0


async def test_many_jobs_are_taken_in_parts(
    queue: JobQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shared.store.redis.lost_workers._AT_ONCE", 2)
    jobs = [await lease(queue) for _ in range(5)]
    registry = CollectorRegistry()
    lost = LostWorkerMetrics(registry, ReaperMetrics(registry))
    await LostWorkers(queue, lost).reclaim([0], WORKER)
    assert {await state(queue, job.id) for job in jobs} == {"queued"}
    assert registry.get_sample_value("flotilla_lost_workers_total") == 1
    assert registry.get_sample_value("flotilla_reaped_jobs_total", {"state": "queued"}) == 5


async def test_the_end_of_a_connection_is_noticed_long_before_the_lease_ends(
    queue: JobQueue, store: Redis, redis_url: str
) -> None:
    subscriber = subscribe(store)
    job = await lease(queue)
    async with open_queue(redis_url) as second, detecting(queue, second) as detectors:
        await detectors.looked()
        assert await state(queue, job.id) == "in_progress"
        subscriber.close()
        await eventually(lambda: is_queued(queue, job.id), "it is queued again", FAST_S)
        await detectors.looked()
        assert detectors.registry.get_sample_value("flotilla_lost_workers_total") == 1


async def test_workers_lose_their_jobs_of_every_shard(redis_url: str, store: Redis) -> None:
    async with open_queue(redis_url, shards=4) as queue:
        subscribers = [
            ChannelSubscriber(store, keys.control_channel(WORKER), shards[0])
            for shards in queue.servers.groups
        ]
        jobs = []
        for shard in range(4):
            await submit(queue, id=f"job_{shard:03x}{shard:024x}")
            jobs += await claim(queue, shard=shard)
        async with detecting(queue) as detectors:
            await detectors.looked()
            for subscriber in subscribers:
                subscriber.close()
            await all_are_queued(queue, *jobs)


async def test_a_worker_that_returns_soon_after_a_restart_of_redis_keeps_its_jobs(
    own_redis: RedisServer,
) -> None:
    async with open_queue(own_redis.url) as queue, detecting(queue) as detectors:
        with own_redis.client() as store:
            subscribers = [subscribe(store, worker) for worker in (WORKER, OTHER)]
            jobs = []
            for worker in (WORKER, OTHER):
                await submit(queue)
                jobs.append(await claim_one(queue, worker))
            await detectors.looked()
            own_redis.stop(kill=True)
            own_redis.start()
            restarted = time.monotonic()
            await asyncio.sleep(RETURN_S / 2)
            again = subscribe(own_redis.client())  # the other worker does not return
            await eventually(lambda: is_queued(queue, jobs[1].id), "it is queued", LEASE_S)
            assert time.monotonic() - restarted > RETURN_S / 2
            await detectors.looked()
            assert await state(queue, jobs[0].id) == "in_progress"
            for subscriber in (*subscribers, again):
                subscriber.close()


async def test_a_worker_that_ended_before_the_detector_began_is_found_by_the_registry(
    queue: JobQueue, store: Redis
) -> None:
    subscriber = subscribe(store, OTHER)
    store.sadd(keys.WORKERS, WORKER, OTHER)
    job = await lease(queue)
    async with detecting(queue):
        await eventually(lambda: is_queued(queue, job.id), "it is queued again", FAST_S)
    subscriber.close()


def test_many_gateways_ask_less_often_each() -> None:
    workers = {keys.control_channel(f"w-{n}") for n in range(500)}

    def asked_every(gateways: int) -> float:
        return interval_s(workers | {keys.tokens_channel(f"gw-{n}") for n in range(gateways)})

    assert [asked_every(gateways) for gateways in (0, 1, 3)] == [INTERVAL_S] * 3
    assert asked_every(9) == pytest.approx(3 * INTERVAL_S)
    assert asked_every(100) == 1.0


async def test_a_redis_that_refuses_the_question_is_reported_once_and_asked_again_later(
    queue: JobQueue,
    store: sync_redis.Redis,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert detector._REFUSED_S > 50 * INTERVAL_S
    monkeypatch.setattr(detector, "_REFUSED_S", 0.0)
    store.config_resetstat()
    store.acl_setuser(
        "default", enabled=True, nopass=True, categories=["+@all"], commands=["-pubsub"]
    )

    async def refused() -> bool:
        stats = store.info("commandstats")
        return sum(stats.get(name, {}).get("rejected_calls", 0) for name in PUBSUB_STATS) >= 3

    try:
        async with detecting(queue):
            await eventually(refused, "it was asked again")
        lines = [each for each in caplog.records if "by their leases only" in each.getMessage()]
        assert len(lines) == 1
    finally:
        store.acl_setuser("default", enabled=True, nopass=True, categories=["+@all"], keys=["*"])

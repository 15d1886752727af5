"""Jobs that are refused at the door, and when they may come back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gateway.core.fleet_view import FleetView
from gateway.core.job_admission import JobAdmission
from shared.fleet.registry import Heartbeat
from shared.job.errors import (
    DeadlineUnreachable,
)
from shared.job.states import WorkerState
from shared.store.fleet_registry import Registry
from shared.store.queue import Queue
from tests.store.conftest import POOL, Case, make_job
from tests.unit.gateway.test_wait_estimate import SCALE
from tests.unit.worker_info import worker as info

SLOTS, JOB_S = 4, 2.0
WAITING = 20


class Door:
    """A gateway's admission; its pool has a worker whose jobs have taken two seconds each."""

    def __init__(self, queue: Queue) -> None:
        self.fleet = FleetView(queue)
        self.admission = JobAdmission(queue, self.fleet)
        self.admit = self.admission.admit


@pytest.fixture
def queue(live: Case) -> Queue:
    return live.queue


@pytest.fixture
async def door(queue: Queue) -> Door:
    door = Door(queue)
    registry = Registry(queue.servers.primary)
    busy = info(slots=SLOTS, jobs=SLOTS, job_s=JOB_S)
    await registry.announce(busy)
    await door.fleet.refresh()
    return door


async def fill(queue: Queue, n: int = WAITING, **changes: Any) -> None:
    jobs = [make_job(**changes) for _ in range(n)]
    assert all(r for r in queue.parse_submit(jobs, await queue.submit(0, jobs, 1000)))


async def test_what_is_not_known_is_not_refused(queue: Queue) -> None:
    await fill(queue)
    assert await Door(queue).admit(make_job(queue_deadline_s=0.1))


async def test_a_pool_without_workers_takes_jobs_as_one_is_started_for_them(
    door: Door, queue: Queue
) -> None:
    await fill(queue)
    seen = replace(SCALE.seen, at_s=door.fleet.now_s())
    door.fleet.scales = {POOL: replace(SCALE, seen=seen)}
    door.fleet._set_workers([])
    assert door.fleet.wait_estimate(POOL, 1).wait_s == 40
    assert await door.admit(make_job(queue_deadline_s=1.0))
    door.fleet._set_workers([Heartbeat(info(state=WorkerState.STARTING, slots=0), 0.0)])
    with pytest.raises(DeadlineUnreachable):
        await door.admit(make_job(queue_deadline_s=1.0))


async def test_another_tenant_waits_for_its_turn_only(door: Door, queue: Queue) -> None:
    await fill(queue)
    assert await door.admit(make_job(tenant="other", max_wait_s=3.0))


async def test_a_job_that_need_not_wait_is_not_refused(door: Door, live: Case) -> None:
    await live.worker(room=SLOTS).claim()
    for _ in range(SLOTS):  # none of them is submitted meanwhile
        await door.admit(make_job(max_wait_s=0.01))
    with pytest.raises(DeadlineUnreachable):
        await door.admit(make_job(max_wait_s=0.01))

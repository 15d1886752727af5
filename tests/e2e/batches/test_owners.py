"""Batches that maintenance processes run: kills, a stopped owner, a storage that is away."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from shared.batches.batch import Batch, BatchStatus
from tests.e2e.batches.conftest import Batches, check_sums, line, opened
from tests.harness.fleet import Process, Stack
from tests.harness.up import children
from tests.harness.waiting import eventually, wait_for

LINES = 1500


@pytest.fixture
async def batches(
    stack: Stack, redis_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Batches]:
    """Read here, run by maintenance processes."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    stack.worker(sim_step_ms=2, sim_max_num_seqs=16)
    async with opened(redis_url, tmp_path) as found:
        yield found


@pytest.fixture
def maintenance(stack: Stack, batches: Batches) -> Process:
    """One process."""
    return stack.maintenance(storage_url=batches.context.settings.storage_url)


async def create(batches: Batches, **changes: Any) -> Batch:
    """A batch that takes some seconds."""
    return await batches.create(b"\n".join(line(f"q{n}", **changes) for n in range(LINES)))


async def until_completed(batches: Batches, batch: Batch, least: int) -> None:
    """So many lines have answers."""

    async def enough() -> bool:
        return (await batches.get(batch)).completed >= least

    await eventually(enough, f"{least} lines are completed")


async def check_whole(batches: Batches, batch: Batch) -> None:
    """Every line has its answer, once."""

    async def ended() -> bool:
        return (await batches.get(batch)).status.ended

    await eventually(ended, "the batch has ended", 90)
    found = await batches.get(batch)
    assert (found.status, found.completed, found.failed) == (BatchStatus.COMPLETED, LINES, 0)
    await check_sums(batches, found, set())


def celery_in(maintenance: Process) -> int:
    """The pid of its Celery process, which may just be starting."""
    return wait_for(lambda: children(maintenance.popen.pid), "Celery runs")[0]


async def pauses(maintenance: Process) -> None:
    """A batch that could go on has paused once more."""

    def pauses() -> int:
        return maintenance.log.read_text().count(" pauses: ")

    before = pauses()

    async def more() -> bool:
        return pauses() > before

    await eventually(more, "it pauses", 30)


async def test_a_killed_owner_is_replaced(batches: Batches, maintenance: Process) -> None:
    batch = await create(batches, max_tokens=30, ignore_eos=True)
    for least in (1, 300, 600):
        await until_completed(batches, batch, least)
        os.kill(celery_in(maintenance), signal.SIGKILL)
    await check_whole(batches, batch)


async def test_a_stopped_owner_changes_nothing_later(
    stack: Stack, batches: Batches, maintenance: Process
) -> None:
    batch = await create(batches)
    await until_completed(batches, batch, 1)
    stopped = celery_in(maintenance)
    os.kill(stopped, signal.SIGSTOP)
    stack.maintenance(storage_url=batches.context.settings.storage_url)
    await until_completed(batches, batch, LINES // 2)
    os.kill(stopped, signal.SIGCONT)
    await check_whole(batches, batch)


async def test_without_storage_it_pauses(batches: Batches, maintenance: Process) -> None:
    """As a volume that is not mounted any more: what is written then is not counted."""
    batch = await create(batches, max_tokens=40, ignore_eos=True)
    await until_completed(batches, batch, 1)
    folder = batches.context.settings.storage_url
    shutil.move(folder, f"{folder}-away")
    await pauses(maintenance)  # the commit that was on its way is over
    before = await batches.get(batch)
    await pauses(maintenance)  # it has tried again
    now = await batches.get(batch)
    assert (now.status, now.completed) == (BatchStatus.IN_PROGRESS, before.completed)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(f"{folder}-away", folder)
    await check_whole(batches, batch)


async def test_a_restart_of_maintenance_goes_on(
    stack: Stack, batches: Batches, maintenance: Process
) -> None:
    batch = await create(batches)
    await until_completed(batches, batch, 1)
    maintenance.terminate()
    assert maintenance.popen.wait(20) == 0
    stack.maintenance(storage_url=batches.context.settings.storage_url)
    await check_whole(batches, batch)

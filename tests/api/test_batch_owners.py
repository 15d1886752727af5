"""Batches whose maintenance process is killed, stopped or restarted, or whose storage is away."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from openai import OpenAI

from tests.harness.client import CHAT, batch_line
from tests.harness.fleet import Process, Stack
from tests.harness.up import children
from tests.harness.waiting import wait_for

LINES = 900


class Batches:
    """A fleet with one maintenance process; makes a batch and follows it."""

    def __init__(self, stack: Stack, folder: Path) -> None:
        self.folder = folder
        self._stack = stack
        stack.worker(sim_step_ms=2, sim_max_num_seqs=16)
        self.maintenance = self.start_maintenance()
        gateway = stack.gateway(storage_url=str(folder))
        self.client = OpenAI(base_url=f"{gateway.url}/v1", api_key="none", max_retries=0)
        self.batch_id = ""

    def start_maintenance(self) -> Process:
        """Start one more."""
        return self._stack.maintenance(storage_url=str(self.folder))

    def create(self, **fields: object) -> None:
        """A batch that takes some seconds."""
        data = b"\n".join(batch_line(f"q{n}", **fields) for n in range(LINES))
        file = self.client.files.create(file=("in.jsonl", data), purpose="batch")
        self.batch_id = self.client.batches.create(
            input_file_id=file.id, endpoint=CHAT, completion_window="24h"
        ).id

    def completed(self) -> int:
        """How many lines have answers."""
        counts = self.client.batches.retrieve(self.batch_id).request_counts
        return counts.completed if counts else 0

    def wait_until_completed(self, least: int) -> None:
        wait_for(lambda: self.completed() >= least, f"{least} lines are completed")

    def check_whole(self) -> None:
        """Every line has its answer, once, and the counts add up."""

        def has_ended() -> bool:
            status = self.client.batches.retrieve(self.batch_id).status
            return status in {"completed", "failed", "expired", "cancelled"}

        wait_for(has_ended, "the batch has ended", 120)
        batch = self.client.batches.retrieve(self.batch_id)
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.model_dump() == {
            "total": LINES,
            "completed": LINES,
            "failed": 0,
        }
        assert (batch.error_file_id, batch.output_file_id is None) == (None, False)
        content = self.client.files.content(batch.output_file_id or "")
        lines = [json.loads(each) for each in content.text.splitlines()]
        ids = Counter(each["custom_id"] for each in lines)
        assert ids == Counter(f"q{n}" for n in range(LINES))
        assert {each["response"]["status_code"] for each in lines} == {200}
        usages = [each["response"]["body"]["usage"] for each in lines]
        assert batch.usage is not None
        assert batch.usage.output_tokens == sum(each["completion_tokens"] for each in usages)


@pytest.fixture
def batches(stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Batches]:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    batches = Batches(stack, tmp_path / "files")
    yield batches
    batches.client.close()


def celery_in(maintenance: Process) -> int:
    """The pid of its Celery process, which may just be starting."""
    return wait_for(lambda: children(maintenance.popen.pid), "Celery runs")[0]


def wait_until_it_pauses(maintenance: Process) -> None:
    """Until a batch that could go on has paused once more."""

    def pauses() -> int:
        return maintenance.log.read_text().count(" pauses: ")

    before = pauses()
    wait_for(lambda: pauses() > before, "it pauses")


def test_a_killed_owner_is_replaced(batches: Batches) -> None:
    batches.create(max_tokens=30, ignore_eos=True)
    for least in (1, 200, 400):
        batches.wait_until_completed(least)
        os.kill(celery_in(batches.maintenance), signal.SIGKILL)
    batches.check_whole()


def test_a_stopped_owner_changes_nothing_later(batches: Batches) -> None:
    batches.create()
    batches.wait_until_completed(1)
    stopped = celery_in(batches.maintenance)
    os.kill(stopped, signal.SIGSTOP)
    batches.start_maintenance()
    batches.wait_until_completed(LINES // 2)
    os.kill(stopped, signal.SIGCONT)
    batches.check_whole()


def test_without_storage_it_pauses(batches: Batches) -> None:
    """As a volume that is not mounted any more: what is written then is not counted."""
    batches.create(max_tokens=40, ignore_eos=True)
    batches.wait_until_completed(1)
    away = batches.folder.with_name("away")
    shutil.move(batches.folder, away)
    wait_until_it_pauses(batches.maintenance)  # the commit that was on its way is over
    before = batches.completed()
    wait_until_it_pauses(batches.maintenance)  # it has tried again
    batch = batches.client.batches.retrieve(batches.batch_id)
    assert (batch.status, batches.completed()) == ("in_progress", before)
    shutil.rmtree(batches.folder, ignore_errors=True)
    shutil.move(away, batches.folder)
    batches.check_whole()


def test_a_restart_of_maintenance_goes_on(batches: Batches) -> None:
    batches.create()
    batches.wait_until_completed(1)
    batches.maintenance.terminate()
    assert batches.maintenance.popen.wait(60) == 0
    batches.start_maintenance()
    batches.check_whole()

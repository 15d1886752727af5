"""`flotilla up` restarts workers that stand still, also while they drain."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.client import chat, http, job, states, submit
from tests.harness.up import REAL, Up, children, is_alive
from tests.harness.waiting import wait_for


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Up]:
    """Two workers, in each of which a job takes some seconds."""
    one = Up(
        tmp_path,
        "--workers",
        "2",
        command=REAL,
        FLOTILLA_WORKER_RESTART_AFTER_S="1",
        FLOTILLA_DRAIN_DEADLINE_S="3",
        FLOTILLA_SIM_STEP_MS="50",
        FLOTILLA_SIM_MAX_NUM_SEQS="1",
    )
    yield one.wait_until_ready()
    one.kill()


def pid_of(one: Up, worker: str) -> int:
    wanted = f"FLOTILLA_WORKER_ID={worker}\0".encode()
    (pid,) = (
        pid
        for pid in children(one.process.pid)
        if wanted in Path(f"/proc/{pid}/environ").read_bytes() + b"\0"
    )
    return pid


def test_workers_that_stand_still_are_replaced(fleet: Up) -> None:
    jobs = [submit(fleet, chat(max_tokens=100, ignore_eos=True)) for _ in range(2)]
    wait_for(lambda: states(fleet, jobs) == {"in_progress"}, "both workers are busy")
    drained, stopped = (job(fleet, each)["attempts"][-1]["worker"] for each in jobs)
    assert http.post(f"{fleet.url}/admin/workers/{drained}/drain").status_code == 200
    pids = [pid_of(fleet, worker) for worker in (drained, stopped)]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    shown: set[str] = set()

    def both_were_shown() -> bool:
        workers = http.get(f"{fleet.url}/admin/overview").json()["workers"]
        shown.update(each["id"] for each in workers if each["state"] == "lost")
        return {drained, stopped} <= shown

    wait_for(both_were_shown, "both were shown as lost")
    wait_for(lambda: states(fleet, jobs) == {"completed"}, "other workers have done the jobs")
    wait_for(lambda: not any(map(is_alive, pids)), "both were killed")
    text = fleet.text()
    assert len(re.findall(r"was killed by SIGKILL; starting it again", text)) == 2
    fleet.wait_for_output("worker-1 .*is ready again")
    fleet.wait_for_output("worker-2 .*is ready again")
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0

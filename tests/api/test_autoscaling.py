"""`flotilla up --autoscale` for real: a burst meets no worker, workers come, work, and go again."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.inner_settings import QUICK_SCALING
from tests.harness.up import REAL, Up
from tests.harness.waiting import DEADLINE_S, wait_for

JOBS = 250
MODEL = "simulated"
QUICK = {
    "FLOTILLA_SIM_MAX_NUM_SEQS": "16",
    "FLOTILLA_SIM_STEP_MS": "20",
    "FLOTILLA_AUTOSCALE_IDLE_S": "3",
    **{f"FLOTILLA_{name.upper()}": str(value) for name, value in QUICK_SCALING.items()},
}


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, **environment: str) -> Up:
        started.append(Up(tmp_path, *arguments, command=REAL, **QUICK, **environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def api() -> Iterator[httpx.Client]:
    with httpx.Client(timeout=60) as client:
        yield client


def explain(fleet: Up, *arguments: str) -> str:
    done = subprocess.run(
        [REAL[0], "scale", "explain", *arguments],
        cwd=fleet.folder,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={name: value for name, value in os.environ.items() if "FLOTILLA" not in name},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def pool(api: httpx.Client, url: str) -> Any:
    (found,) = api.get(f"{url}/admin/autoscale").json()["data"]
    return found


def submit(api: httpx.Client, url: str, number: int) -> str:
    body = {
        "model": MODEL,
        "max_tokens": 40,
        "messages": [{"role": "user", "content": f"Job {number}"}],
    }
    reply = api.post(f"{url}/jobs", json={"body": body})
    assert reply.status_code == 202, reply.text
    return str(reply.json()["id"])


def jobs(api: httpx.Client, url: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor: dict[str, str] = {}
    while True:
        page = api.get(f"{url}/jobs", params={"limit": "100", **cursor}).json()
        found += page["data"]
        if not page["has_more"]:
            return found
        cursor = {"cursor": page["next_cursor"]}


def test_a_burst_from_zero_and_back_to_zero(up: Callable[..., Up], api: httpx.Client) -> None:
    fleet = up("--autoscale", "0:3").wait_until_ready()
    url = f"http://127.0.0.1:{fleet.port}"
    assert "0 to 3, as the load asks" in fleet.text()
    assert "worker-1" not in fleet.text()
    (shown,) = json.loads(explain(fleet, MODEL, "--json"))["data"]
    assert shown["wanted"] == 0

    with ThreadPoolExecutor(8) as threads:
        ids = list(threads.map(lambda number: submit(api, url, number), range(JOBS)))

    def ended() -> bool:
        unfinished = {"filter": "state:queued,in_progress", "limit": "1"}
        return not api.get(f"{url}/jobs", params=unfinished).json()["data"]

    wait_for(ended, "all jobs have ended")
    done = jobs(api, url)
    assert Counter(job["state"] for job in done) == {"completed": JOBS}
    assert {job["id"] for job in done} == set(ids)
    assert {job["error"] for job in done} == {None}
    assert len({attempt["worker"] for job in done for attempt in job["attempts"]}) > 1

    wait_for(lambda: pool(api, url)["workers"] == {}, "the workers have gone")
    last = pool(api, url)
    assert last["wanted"] == 0
    seen = last["inputs"]
    assert (seen["slots"], seen["waiting"], seen["running"]) == (16, 0, 0)
    assert seen["job_s"] > 0.5  # 40 steps of 20 ms, unless the answer ends by itself
    assert seen["start_s"] > 0.1
    wanted = [change["wanted"] for change in last["history"]]
    assert max(wanted) > 1
    assert wanted[0] == wanted[-1] == 0
    text = explain(fleet)
    assert "wanted   0 workers, of 0 to 3" in text
    assert "actual   none" in text
    assert "jobs wait" in text
    drained = fleet.wait_for_output(r"draining (worker-\d)")
    assert len(drained) >= 2

    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0, fleet.text()
    fleet.wait_until_all_ended()
    assert not (fleet.folder / ".flotilla" / "run.json").exists()


def test_who_waits_for_a_cold_fleet_is_told_and_ctrl_c_ends_it(
    up: Callable[..., Up], api: httpx.Client
) -> None:
    fleet = up("--autoscale", "0:2", FLOTILLA_SIM_FAULTS="slow_start_s=60").wait_until_ready()
    url = f"http://127.0.0.1:{fleet.port}"
    job_id = submit(api, url, 0)

    def wait_reason() -> str:
        return str(api.get(f"{url}/jobs/{job_id}").json().get("wait_reason", ""))

    wait_for(lambda: "one is being started" in wait_reason(), "the job shows why it waits")
    wait_for(lambda: pool(api, url)["workers"] == {"starting": 1}, "the worker that loads counts")
    fleet.wait_for_output("starting worker-1")
    run_file = fleet.folder / ".flotilla" / "run.json"
    assert run_file.stat().st_mode & 0o777 == 0o600
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0, fleet.text()
    fleet.wait_until_all_ended()
    assert not run_file.exists()

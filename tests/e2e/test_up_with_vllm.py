"""`flotilla up --workers 2` with real vLLM: kill one worker under load, then Ctrl-C."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.up_run import REAL, Up, children, is_alive
from tests.waiting import wait_for
from worker.demo import MODEL_NAME

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

ENGINE = "VLLM::EngineCore"
LOADING_S = 240.0


def test_a_worker_is_killed_under_load_and_nothing_that_waited_is_lost(tmp_path: Path) -> None:
    # Few slots, so that most jobs wait; long answers, so that it dies in the middle of some.
    up = Up(
        tmp_path,
        "--workers",
        "2",
        "--engine-args",
        "--max-num-seqs 4",
        command=REAL,
        FLOTILLA_ENGINE="vllm",
        FLOTILLA_LEASE_S="3",
    )
    try:
        up.wait_until_ready(LOADING_S)
        assert MODEL_NAME in up.text()
        with httpx.Client(base_url=f"http://127.0.0.1:{up.port}", timeout=60) as api:
            ids = [submit(api, number) for number in range(16)]
            wait_for(lambda: len(in_progress(api)) == 8, "both workers are full")
            begun = {job["id"] for job in in_progress(api)}
            victim = next(p for p in children(up.process.pid) if name_of(p).endswith("-m worker"))
            engines = [p for p in children(victim) if ENGINE in name_of(p)]
            assert len(engines) == 1
            os.kill(victim, signal.SIGKILL)
            wait_for(lambda: not is_alive(engines[0]), "its engine has gone with it")

            def ended() -> bool:
                return all(look(api, i)["state"] in {"completed", "failed"} for i in ids)

            wait_for(ended, "every job has ended", 240)
            jobs = [look(api, job_id) for job_id in ids]
            assert [j["state"] for j in jobs] == ["completed"] * len(jobs)
            assert {j["id"] for j in jobs if len(j["attempts"]) > 1} <= begun
            up.wait_for_output(r"worker-\d +\| is ready again", 1, LOADING_S)
            lose_an_engine(up, api)
        up.pids.update(children(up.process.pid))
        engines = [pid for pid in up.pids if is_alive(pid) and ENGINE in name_of(pid)]
        assert len(engines) == 2, up.text()
        up.process.send_signal(signal.SIGINT)
        assert up.wait_for_exit() == 0
        up.wait_until_all_ended()
    finally:
        print(up.text())  # shown when the test fails
        for pid in [*children(up.process.pid), up.process.pid]:
            if is_alive(pid):
                os.kill(pid, signal.SIGKILL)
        up.process.wait()


def lose_an_engine(up: Up, api: httpx.Client) -> None:
    """A worker whose engine dies hands its jobs back, leaves, and is started again."""
    ids = [submit(api, number) for number in range(8)]
    wait_for(lambda: len(in_progress(api)) == 8, "both workers are full")
    engine = next(pid for pid in children(up.process.pid) if ENGINE in name_of(pid))
    os.kill(engine, signal.SIGKILL)
    wait_for(lambda: all(look(api, i)["state"] == "completed" for i in ids), "all complete", 120)
    outcomes = [attempt["outcome"] for i in ids for attempt in look(api, i)["attempts"]]
    assert outcomes.count("engine_died") == 4
    up.wait_for_output(r"worker-\d +\| .* the engine is dead")
    up.wait_for_output(r"worker-\d +\| is ready again", 2, LOADING_S)


def submit(api: httpx.Client, number: int) -> str:
    body = {
        "model": MODEL_NAME,
        "messages": [{"role": "user", "content": f"Tell me story {number} about a queue."}],
        "max_tokens": 200,
        "ignore_eos": True,
    }
    job_id: str = api.post("/jobs", json={"body": body}).json()["id"]
    return job_id


def in_progress(api: httpx.Client) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = api.get("/jobs", params={"state": "in_progress"}).json()["data"]
    return jobs


def look(api: httpx.Client, job_id: str) -> dict[str, Any]:
    job: dict[str, Any] = api.get(f"/jobs/{job_id}").json()
    return job


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
    except (FileNotFoundError, ProcessLookupError):
        return ""

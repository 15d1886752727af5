"""A fleet on a bad day: one worker is lost, jobs wait for slots, one has failed."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

ROOT = Path(__file__).parents[2]
FLOTILLA = str(Path(sys.executable).with_name("flotilla"))
OPERATOR = "adm1n"
SLOTS = 2
_STEP_MS = 50
_LONG = 8000  # tokens: longer than the tests take


@dataclass
class TroubledFleet:
    """A gateway, a worker that works, and one that was killed."""

    gateway: Process
    healthy: str
    lost: str
    waiting: str
    """A job that waits for a slot."""
    failed: str

    @classmethod
    def start(cls, stack: Stack) -> TroubledFleet:
        """Start it; returns when all of this has happened."""
        gateway = stack.gateway(api_keys="team:s3cret", admin_keys=f"ops:{OPERATOR}")
        settings = {
            "sim_step_ms": _STEP_MS,
            "sim_step_us_per_seq": 0,
            "sim_max_num_seqs": SLOTS,
        }
        stack.worker(worker_id="w-healthy", **settings)
        lost = stack.worker(worker_id="w-lost", **settings)
        url = gateway.url
        failed = submit(url, prompt="far too long", max_tokens=1_000_000)
        wait_for(lambda: _state(url, failed) == "failed", "the job has failed")
        long = [submit(url, prompt=f"long {n}", max_tokens=_LONG) for n in range(2 * SLOTS)]
        wait_for(lambda: _states(url, long) == {"in_progress"}, "the long jobs run")
        waiting = submit(url, prompt="short", max_tokens=3)
        # The overview has to have its heartbeat with its jobs before heartbeats stop.
        wait_for(lambda: _busy(url, "w-lost") == SLOTS, "the overview has the worker's jobs")
        lost.kill()
        return cls(gateway, "w-healthy", "w-lost", waiting, failed)

    def run(self, *words: str, status: int = 0) -> str:
        """Run `flotilla` with these arguments as an operator; return what it prints."""
        environment = {
            name: value for name, value in os.environ.items() if "FLOTILLA" not in name
        } | {
            "PYTHONPATH": str(ROOT),
            "FLOTILLA_URL": self.gateway.url,
            "FLOTILLA_API_KEY": OPERATOR,
            "NO_COLOR": "1",
            "COLUMNS": "160",
        }
        done = subprocess.run(
            [FLOTILLA, *words], env=environment, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done.stdout


def post_job(url: str, **fields: Any) -> httpx.Response:
    """Send a job as the operator."""
    body = {"model": "simulated", "ignore_eos": True, **fields}
    return http.post(
        f"{url}/jobs", json={"endpoint": "/v1/completions", "body": body}, headers=headers()
    )


def submit(url: str, **fields: Any) -> str:
    """Submit a job as the operator; return its id."""
    answer = post_job(url, **fields)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def headers() -> dict[str, str]:
    """The operator's key."""
    return {"authorization": f"Bearer {OPERATOR}"}


def get(url: str, path: str) -> Any:
    """The JSON of a route, with the operator's key."""
    return http.get(f"{url}{path}", headers=headers(), timeout=30).raise_for_status().json()


def _state(url: str, job_id: str) -> str:
    state: str = get(url, f"/jobs/{job_id}")["state"]
    return state


def _states(url: str, jobs: list[str]) -> set[str]:
    return {_state(url, job_id) for job_id in jobs}


def _busy(url: str, worker_id: str) -> int:
    workers = {worker["id"]: worker for worker in get(url, "/admin/overview")["workers"]}
    return int(workers[worker_id]["busy"]) if worker_id in workers else 0

"""`flotilla` against real processes: the operators' questions, a job from end to end."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.settings import ROOT, child_environment
from tests.harness.up import FLOTILLA
from tests.harness.waiting import wait_for

Flotilla = Callable[..., Any]


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """It has two tenants and an operator; the worker has two slots."""
    module_stack.worker(worker_id="w-1", sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=2)
    return module_stack.gateway(api_keys="team:k-team,other:k-other", admin_keys="ops:k-ops")


@pytest.fixture
def flotilla(gateway: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command as a tenant, by default as the operator."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str, key: str = "k-ops", **more: Any) -> Any:
        environment = {"FLOTILLA_URL": gateway.url, "FLOTILLA_API_KEY": key}
        return run_flotilla(*arguments, environment=environment, **more)

    return run


def test_a_job_from_end_to_end(flotilla: Flotilla, tmp_path: Path) -> None:
    followed = flotilla("submit", "hello", "--follow", "--meta", "n=1", key="k-team")
    assert "[simulated]" in followed.stdout
    (job,) = json.loads(flotilla("jobs", "ls", "--json", key="k-team").stdout)["data"]
    assert (job["state"], job["metadata"]) == ("completed", {"n": "1"})
    row = flotilla("jobs", "ls", "state:completed", "since:1h", key="k-team").stdout.splitlines()[1]
    assert row.split()[:3] == [job["id"], "completed", "simulated"]
    assert followed.stdout == flotilla("jobs", "result", job["id"], key="k-team").stdout
    page = flotilla("jobs", "show", job["id"], key="k-team").stdout
    assert "w-1" in page
    times = json.loads(flotilla("jobs", "timeline", job["id"], "--json", key="k-team").stdout)
    names = [each["event"] for each in times["events"]]
    assert names[0] == "submitted"
    assert names[-1] == "completed"
    assert flotilla("jobs", "why", job["id"], key="k-team").stdout
    flotilla("jobs", "retry", job["id"], key="k-team", code=4)
    flotilla("jobs", "show", job["id"], key="k-other", code=3)
    assert "completed" in flotilla("jobs", "show", job["id"]).stdout  # the operator
    chat = flotilla("chat", "hello", "--stats", key="k-team")
    assert "[simulated]" in chat.stdout
    assert "worker w-1" in chat.stderr


def test_why_a_job_waits_and_how_to_stop_and_resume(flotilla: Flotilla) -> None:
    assert flotilla("queue", "pause", "--reason", "test").stdout == "simulated: pause done\n"
    try:
        job = flotilla("submit", "hello", key="k-team").stdout.strip()
        wait_for(
            lambda: "paused" in flotilla("jobs", "why", job, key="k-team").stdout,
            "the gateway has read it",
        )
        wait_for(lambda: "PAUSED" in flotilla("queue", "ls").stdout, "the overview has it")
        assert "no. 1, " in flotilla("jobs", "ls", "state:queued", key="k-team").stdout
        flotilla("jobs", "result", job, "--wait", "0.1", key="k-team", code=6)
        shown = flotilla("jobs", "cancel", "--filter", "tenant:* state:queued", "--dry-run").stdout
        assert shown == f"cancel would change 1 job\n  {job}\n"
        assert flotilla("jobs", "cancel", job).stdout == f"{job}: cancel done\n"
        retried = flotilla("jobs", "retry", job, key="k-team").stdout.split()[-1]
    finally:
        flotilla("queue", "resume", "simulated")
    assert flotilla("jobs", "result", retried, "--wait", "30", key="k-team").stdout


def test_intake_is_stopped(flotilla: Flotilla) -> None:
    flotilla("queue", "pause", "simulated", "--intake")
    try:
        wait_for(
            lambda: "INTAKE STOPPED" in flotilla("queue", "ls").stdout, "the gateway has read it"
        )
        assert "flotilla: " in flotilla("submit", "hello", key="k-team", code=4).stderr
    finally:
        flotilla("queue", "resume", "simulated")
    wait_for(lambda: "open" in flotilla("queue", "ls").stdout, "the gateway has read it")
    flotilla("submit", "hello", "--wait", "30", key="k-team")


def test_what_an_operator_sees(flotilla: Flotilla) -> None:
    def worker() -> list[str]:
        lines = flotilla("workers", "ls").stdout.splitlines()
        return next((line.split() for line in lines if line.startswith("w-1")), [])

    # The overview may show for a second what the tests before have done.
    wait_for(lambda: worker()[1:2] == ["ready"], "the worker is ready")
    assert "simulated" in worker()
    page = flotilla("status").stdout
    assert "SIMULATED engine" in page
    assert "w-1" in page
    assert {"team", "other", "ops"} <= set(flotilla("keys", "tenants").stdout.split())
    found = json.loads(flotilla("doctor", "--json").stdout)["data"]
    assert {each["state"] for each in found if each["name"] != "engine"} <= {"ok", "warning"}
    assert [each["state"] for each in found if each["name"] == "engine"] == ["warning"]
    assert flotilla("scale", "explain").stdout.startswith("No autoscaler decides")
    flotilla("workers", "ls", key="k-team", code=4)
    flotilla("jobs", "ls", key="wrong", code=4)
    flotilla("jobs", "ls", "stat:failed", code=2)
    flotilla("workers", "drain", "w-9", code=3)


def test_the_command_starts_without_the_libraries_of_processes() -> None:
    command = [sys.executable, "-X", "importtime", FLOTILLA, "--version"]
    environment = child_environment() | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("flotilla ")
    loaded = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert "typer" in loaded
    assert not loaded & {"celery", "fastapi", "opentelemetry", "redis", "vllm"}


def test_the_shell_completes_more_jobs_than_a_page_has(gateway: Process) -> None:
    headers = {"authorization": "Bearer k-other"}
    body = {"body": {"messages": [{"role": "user", "content": "x"}], "max_tokens": 1}}
    jobs = {
        http.post(f"{gateway.url}/jobs", json=body, headers=headers).json()["id"] for _ in range(25)
    }
    environment = os.environ | {
        "FLOTILLA_URL": gateway.url,
        "FLOTILLA_API_KEY": "k-other",
        "_FLOTILLA_COMPLETE": "complete_bash",
        "COMP_WORDS": "flotilla jobs show ",
        "COMP_CWORD": "3",
    }
    command = [str(Path(sys.executable).with_name("flotilla"))]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150)
    assert set(done.stdout.split()) >= jobs, done.stderr

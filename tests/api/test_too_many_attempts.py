"""A job that was tried too often is a failed job: it is found by its error, and retried."""

from __future__ import annotations

from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, TEAM
from tests.harness.waiting import wait_for

FIELDS = {"metadata": {"a": "b"}, "lane": "flex", "run_deadline_s": 300}


def submit(gateway: Process, text: str, **fields: Any) -> str:
    body = {"body": chat(text, max_tokens=4), **fields}
    answer = http.post(f"{gateway.url}/jobs", headers=TEAM, json=body)
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def job(gateway: Process, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{gateway.url}/jobs/{job_id}", headers=TEAM).json()
    return found


def listed(gateway: Process, headers: dict[str, str] = TEAM, **query: str) -> list[str]:
    answer = http.get(f"{gateway.url}/jobs", headers=headers, params=query)
    assert answer.status_code == 200, answer.text
    return [each["id"] for each in answer.json()["data"]]


@pytest.fixture
def gateway(stack: Stack) -> Process:
    return stack.gateway(**KEYS, max_attempts=1)


@pytest.fixture
def given_up(stack: Stack, gateway: Process) -> str:
    """The id of a job whose only attempt was lost with its worker; another worker goes on."""
    simulated = {"sim_step_ms": 1, "sim_step_us_per_seq": 0}
    stack.worker(**simulated, sim_faults="kill_on_prompt=POISON")
    poison = submit(gateway, "POISON", **FIELDS)
    wait_for(lambda: job(gateway, poison)["state"] == "failed", "it is given up")
    stack.worker(**simulated)
    return poison


def test_it_is_found_by_its_error_and_kept_as_other_failed_jobs(
    gateway: Process, given_up: str
) -> None:
    completed = submit(gateway, "hello")
    wait_for(lambda: job(gateway, completed)["state"] == "completed", "another one is answered")
    assert listed(gateway, error="too_many_attempts") == [given_up]
    assert listed(gateway, error="too_many_attempts", state="completed") == []
    assert listed(gateway, error="too_many") == [], "the whole code"
    assert set(listed(gateway)) == {given_up, completed}
    of_all = {"error": "too_many_attempts", "filter": "tenant:*"}
    assert listed(gateway, OPERATOR, **of_all) == [given_up]
    assert listed(gateway, OPERATOR, error="too_many_attempts") == [], "another tenant's"
    shown, other = job(gateway, given_up), job(gateway, completed)
    assert shown["error"]["code"] == "too_many_attempts"
    assert [each["outcome"] for each in shown["attempts"]] == ["worker_lost"]
    kept, of_other = (each["expires_at"] - each["finished_at"] for each in (shown, other))
    assert kept == pytest.approx(of_other, abs=1)


def test_the_command_lists_and_retries_it(gateway: Process, given_up: str) -> None:
    environment = {"FLOTILLA_URL": gateway.url, "FLOTILLA_API_KEY": "s3cret"}
    found = run_flotilla("jobs", "ls", "--error", "too_many_attempts", environment=environment)
    assert given_up in found.stdout
    other = run_flotilla("jobs", "ls", "--error", "worker_lost", environment=environment)
    assert given_up not in other.stdout
    done = run_flotilla("jobs", "retry", given_up, environment=environment)
    new = job(gateway, done.stdout.split()[-1])
    assert (new["retried_from"], new["lane"], new["metadata"]) == (given_up, "flex", {"a": "b"})
    wait_for(lambda: job(gateway, new["id"])["state"] == "completed", "it has run again")
    assert job(gateway, given_up)["state"] == "failed"


def test_an_operator_retries_all_that_a_filter_selects(gateway: Process, given_up: str) -> None:
    body = {"filter": "tenant:* error:too_many_attempts", "dry_run": False}
    url = f"{gateway.url}/admin/jobs/retry"
    done = http.post(url, headers=OPERATOR, json=body).json()
    (new,) = done["new_ids"]
    assert job(gateway, new)["retried_from"] == given_up
    again = http.post(url, headers=OPERATOR, json=body).json()
    assert again["new_ids"] in ([new], []), "a repeated call makes no second job"


def test_only_a_failed_job_is_retried(gateway: Process, given_up: str) -> None:
    path = f"{gateway.url}/jobs/{given_up}/retry"
    key = TEAM | {"idempotency-key": given_up}
    answer = http.post(path, headers=key)
    assert answer.status_code == 202, answer.text
    new = answer.json()["id"]
    assert answer.headers["location"] == f"/jobs/{new}"
    again = http.post(path, headers=key)
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (new, "true")
    assert http.post(path, headers=TEAM).json()["id"] != new
    wait_for(lambda: job(gateway, new)["state"] == "completed", "it has run again")
    refused = http.post(f"{gateway.url}/jobs/{new}/retry", headers=TEAM)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_repeatable")
    assert refused.headers["x-should-retry"] == "false"

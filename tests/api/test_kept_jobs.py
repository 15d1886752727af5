"""What counts against a tenant's quota of jobs: those that are kept, and no others."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.client import chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, TEAM
from tests.harness.waiting import wait_for

JOBS, BYTES = 1500, 5000
MOST_BYTES = JOBS * BYTES
ALL_FREE_S = 30.0
"""What has expired stops counting every ten seconds, all at once."""


@pytest.fixture
def waiting(stack: Stack) -> Stack:
    """A fleet whose jobs wait: it knows a model, and has no worker."""
    worker = stack.worker()
    worker.terminate()
    worker.popen.wait()
    return stack


def submit(gateway: Process, n_bytes: int = 1) -> httpx.Response:
    return http.post(f"{gateway.url}/jobs", headers=TEAM, json={"body": chat("x" * n_bytes)})


def listed(gateway: Process, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = http.get(f"{gateway.url}/jobs", headers=TEAM, params=query).json()
    return found


def status(gateway: Process, job_id: str) -> int:
    return http.get(f"{gateway.url}/jobs/{job_id}", headers=TEAM).status_code


def cancel_some(gateway: Process) -> int:
    """Cancel waiting jobs; returns how many there were."""
    body = {"filter": "tenant:* state:queued", "dry_run": False}
    answer = http.post(f"{gateway.url}/admin/jobs/cancel", headers=OPERATOR, json=body)
    return int(answer.json()["matched"])


def test_all_of_a_quota_is_free_again_when_its_jobs_are_gone(waiting: Stack) -> None:
    """Also if clients have asked for them in between."""
    limits = {"max_kept_bytes": MOST_BYTES, "max_queue_depth": 2 * JOBS, "result_ttl_s": 1}
    gateway = waiting.gateway(**KEYS, **limits)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: submit(gateway, BYTES), range(JOBS)))
        accepted = [each for each in answers if each.status_code == 202]
        assert MOST_BYTES / 2 < len(accepted) * BYTES < MOST_BYTES
        refused = answers[-1]
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "quota_exceeded")
        wait_for(lambda: cancel_some(gateway) == 0, "all are cancelled")
        ids = [answer.json()["id"] for answer in accepted]
        wait_for(lambda: {status(gateway, each) for each in ids[::100]} == {404}, "they are gone")
        assert listed(gateway, limit=100)["data"] == []

        def is_free() -> bool:
            """Fill what is free."""
            missing = range(len(accepted) * 9 // 10 - sum(again))
            answers = pool.map(lambda _: submit(gateway, BYTES).status_code, missing)
            again.append(sum(code == 202 for code in answers))
            return again[-1] == len(missing)

        again: list[int] = []
        wait_for(is_free, "all of the quota is free", ALL_FREE_S)


def test_a_job_whose_id_was_used_before_is_counted_and_listed(waiting: Stack) -> None:
    """A retry by an operator has an id that follows from that of the first job."""
    keeps = waiting.gateway(**KEYS)
    forgets = waiting.gateway(**KEYS, result_ttl_s=1, max_kept_bytes=3 * 30_000)
    first: str = submit(keeps, 20_000).json()["id"]

    def cancel(job_id: str) -> None:
        answer = http.post(f"{keeps.url}/jobs/{job_id}/cancel", headers=TEAM)
        assert answer.status_code == 200, answer.text

    def retry() -> str:
        body = {"filter": f"tenant:* id:{first}", "dry_run": False}
        answer = http.post(f"{forgets.url}/admin/jobs/retry", headers=OPERATOR, json=body)
        (new,) = answer.json()["new_ids"]
        return str(new)

    cancel(first)
    again = retry()
    cancel(again)
    wait_for(lambda: status(keeps, again) == 404, "it is gone")
    assert retry() == again

    def submitted() -> str:
        found: str = submit(forgets, 20_000).json().get("id", "")
        return found

    cancel(wait_for(submitted, "what has expired counts no more"))
    wait_for(submitted, "what has expired counts no more")
    assert {first, again} < {each["id"] for each in listed(keeps)["data"]}
    assert not submitted()

"""What waiting jobs are told of their wait, beside what they waited: a simulated worker."""

from __future__ import annotations

from typing import Any

import httpx

from tests.e2e.processes import Stack
from tests.waiting import wait_for

SLOTS = 4
TOKENS = 150
"""Of 10 ms each: a job takes 1.5 s."""


def test_a_burst_is_told_about_what_it_waits(stack: Stack) -> None:
    stack.worker(sim_step_ms=10, sim_step_us_per_seq=0, sim_max_num_seqs=SLOTS)
    gateway = stack.gateway()
    body = {
        "model": "simulated",
        "max_tokens": TOKENS,
        "ignore_eos": True,
        "messages": [{"role": "user", "content": "Hi"}],
    }
    with httpx.Client(base_url=gateway.url, timeout=30) as api:

        def submit() -> dict[str, Any]:
            job: dict[str, Any] = api.post("/jobs", json={"body": body}).json()
            return job

        def look(job: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = api.get(f"/jobs/{job['id']}").json()
            return found

        first = [submit() for _ in range(2 * SLOTS)]
        # Nothing has ended yet, so nothing can be known.
        assert {job.get("estimated_wait_s") for job in first[SLOTS:]} == {None}
        wait_for(lambda: look(first[-1])["state"] == "completed", "the first jobs are done")
        alone = submit()
        wait_for(lambda: look(alone)["state"] == "completed", "a job that waits for nobody is done")

        burst = [submit() for _ in range(3 * SLOTS)]
        waits = [job for job in burst if job["state"] == "queued"]
        assert len(waits) >= SLOTS
        told = {job["id"]: job["estimated_wait_s"] for job in waits}
        wait_for(lambda: look(burst[-1])["state"] == "completed", "the burst is done")
        # Two rounds are before the last job, however late in the first round it was submitted.
        assert (told[burst[-1]["id"]] or 0) > 0.5, "told that it need not wait"
        for job in waits:
            waited_s = look(job)["started_at"] - job["created_at"]
            print(f"told {told[job['id']]}, waited {waited_s:.1f} s")
            assert told[job["id"]] is not None
            assert told[job["id"]] < 3 * waited_s + 3
            assert waited_s < 3 * told[job["id"]] + 5

"""The estimated waits of queued jobs, compared with their real waits: a simulated worker."""

from __future__ import annotations

from typing import Any

import httpx

from tests.harness.client import Call, chat
from tests.harness.fleet import Stack
from tests.harness.waiting import wait_for

SLOTS = 4
TOKENS = 150
"""One takes 10 ms, so a job takes 1.5 s."""


def test_the_estimates_for_a_burst_are_near_the_waits(stack: Stack) -> None:
    """They are told in the body and in headers; a metric compares them with the real waits."""
    stack.worker(sim_step_ms=10, sim_step_us_per_seq=0, sim_max_num_seqs=SLOTS)
    gateway = stack.gateway(stream_status_wait_s=0.05)
    body = chat("Hi", max_tokens=TOKENS, ignore_eos=True)
    with httpx.Client(base_url=gateway.url, timeout=60) as api:

        def submit() -> dict[str, Any]:
            job: dict[str, Any] = api.post("/jobs", json={"body": body}).json()
            return job

        def read(job: dict[str, Any]) -> dict[str, Any]:
            found: dict[str, Any] = api.get(f"/jobs/{job['id']}").json()
            return found

        first = [submit() for _ in range(2 * SLOTS)]
        # No job has ended yet, so there is no estimate.
        assert {job.get("estimated_wait_s") for job in first[SLOTS:]} == {None}
        wait_for(lambda: read(first[-1])["state"] == "completed", "the first jobs are done")
        alone = submit()
        wait_for(lambda: read(alone)["state"] == "completed", "a job that need not wait is done")

        burst = [submit() for _ in range(3 * SLOTS)]
        waits = [job for job in burst if job.get("position")]  # not claimed meanwhile
        assert len(waits) >= SLOTS
        estimates = {job["id"]: job["estimated_wait_s"] for job in waits}
        shown = api.get(f"/jobs/{burst[-1]['id']}")
        assert float(shown.headers["x-flotilla-estimated-start"]) > 0
        assert int(shown.headers["x-flotilla-queue-position"]) >= 1
        more = [submit() for _ in range(2 * SLOTS)]  # the stream waits for longer than 2 s
        stream = Call(gateway, body | {"stream": True})
        wait_for(lambda: read(burst[-1])["state"] == "completed", "the burst is done")
        assert None not in estimates.values()
        ends = [job["created_at"] + estimates[job["id"]] for job in waits]
        assert ends[-1] > ends[0], "further back in the queue is later"
        # Two rounds of jobs go before the last one, whenever in the first it was submitted.
        last = burst[-1]
        waited_s = read(last)["started_at"] - last["created_at"]
        assert 1 / 8 < estimates[last["id"]] / waited_s < 8
        stream.join(60)
        assert stream.headers is not None
        assert float(stream.headers["x-flotilla-estimated-start"]) > 2
        assert stream.lines[-1] == "data: [DONE]"
        assert read(more[-1])["state"] == "completed"
        assert gateway.metric("flotilla_told_wait_ratio_count") == 1

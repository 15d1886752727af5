"""A job whose record in Redis can't be read fails with `record_damaged`; the others run on."""

from __future__ import annotations

import pytest

from tests.harness.client import Call, chat, http, job, submit
from tests.harness.damage import spoil_record
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

FAST = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}


@pytest.fixture
def gateway(stack: Stack) -> Process:
    """Of a fleet whose jobs wait: it knows a model, and has no worker."""
    worker = stack.worker()
    worker.terminate()
    worker.popen.wait()
    return stack.gateway(stream_status_wait_s=0)


def state(gateway: Process, job_id: str) -> str:
    return str(job(gateway, job_id)["state"])


@pytest.mark.parametrize("field", ["state", "created_us", "entry"])
def test_of_jobs_that_wait(stack: Stack, gateway: Process, field: str) -> None:
    call = Call(gateway, chat("damaged", stream=True, max_tokens=3))
    wait_for(lambda: call.job_id, "it waits")
    others = [submit(gateway, chat(f"sound {n}", max_tokens=3)) for n in range(3)]
    damaged = submit(gateway, chat("damaged", max_tokens=3))
    others += [submit(gateway, chat(f"sound {n}", max_tokens=3)) for n in range(3)]
    for job_id in (call.job_id, damaged):
        spoil_record(stack.redis_url, job_id, field)
    stack.worker(**FAST)
    wait_for(lambda: {state(gateway, each) for each in others} == {"completed"}, "others run on")
    wait_for(lambda: state(gateway, damaged) == "failed", "it has failed")
    assert job(gateway, damaged)["error"]["code"] == "record_damaged"
    call.join(60)
    assert call.error == "record_damaged"
    listed = http.get(f"{gateway.url}/jobs", params={"error": "record_damaged"}).json()["data"]
    assert damaged in {each["id"] for each in listed}


def test_of_a_job_that_runs(stack: Stack, gateway: Process) -> None:
    worker = stack.worker(**FAST, sim_max_num_seqs=8)
    body = chat("long", max_tokens=3000, ignore_eos=True)
    damaged, sound = submit(gateway, body), submit(gateway, body)
    wait_for(lambda: state(gateway, damaged) == state(gateway, sound) == "in_progress", "they run")
    spoil_record(stack.redis_url, damaged, "lease")
    wait_for(lambda: state(gateway, damaged) == "failed", "it has failed")
    assert job(gateway, damaged)["error"]["code"] == "record_damaged"
    assert state(gateway, sound) == "in_progress"
    worker.check()
    late = submit(gateway, chat("late", max_tokens=3))
    wait_for(lambda: state(gateway, late) == "completed", "the worker goes on")

"""Workers that are killed, paused or drained, or whose engine dies: what happens to their jobs."""

from __future__ import annotations

import json
import signal
import time
from collections import Counter
from typing import Any

import httpx
import pytest
import redis

from tests.harness.client import (
    CHAT,
    MODEL,
    Call,
    chat,
    http,
    in_progress,
    job,
    join,
    outcomes,
    states,
    submit,
)
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

FAST = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}
STEADY = {"sim_step_ms": 40, "sim_step_us_per_seq": 0}
NEVER_BEGINS = {**FAST, "sim_prefill_us_per_token": 20_000_000, "engine_stall_s": 600.0}
"""The first token takes longer than any test."""
LONG_LEASE = {"lease_s": 600.0}
"""Longer than any test waits: what is lost was noticed, its lease has not expired."""
KILLS = 2


def endless(text: str, **fields: Any) -> dict[str, Any]:
    """A chat that no test waits for."""
    return chat(text, max_tokens=8000, ignore_eos=True, **fields)


def busy(worker: Process) -> float:
    """How many jobs it runs."""
    return worker.metric("flotilla_worker_slots", use="busy")


def completed(worker: Process) -> float:
    """Jobs that it has completed."""
    return worker.metric("flotilla_jobs_finished_total", state="completed")


def drains(worker: Process) -> bool:
    """Whether it takes no more jobs, or has ended."""
    try:
        return http.get(f"{worker.url}/readyz").status_code == 503
    except httpx.TransportError:
        return worker.popen.poll() is not None


@pytest.mark.parametrize("stream", [True, False])
def test_a_job_whose_worker_is_killed_before_its_first_token_completes_elsewhere(
    stack: Stack, stream: bool
) -> None:
    gateway = stack.gateway()
    victim = stack.worker(**NEVER_BEGINS)
    call = Call(gateway, chat("a prompt", max_tokens=5, stream=stream))
    wait_for(lambda: in_progress(gateway, 1), "the job is in progress")
    victim.kill()
    stack.worker(**FAST)
    join([call])
    assert call.status == 200
    assert job(gateway, call.job_id)["state"] == "completed"
    assert outcomes(gateway, call.job_id) == ["worker_lost", "completed"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_whose_worker_is_killed_in_the_middle_is_continued_by_another(
    stack: Stack, stream: bool
) -> None:
    """test_continued_answers.py has all classes of requests."""
    gateway = stack.gateway()
    victim = stack.worker(**STEADY)
    call = Call(gateway, chat("go on", max_tokens=1000, ignore_eos=True, stream=stream))
    wait_for(lambda: victim.metric("flotilla_engine_steps_total") > 25, "it has begun")
    victim.kill()
    survivor = stack.worker(**FAST)
    join([call])
    assert call.status == 200
    done = job(gateway, call.job_id)
    assert done["usage"]["completion_tokens"] == 1000
    assert outcomes(gateway, call.job_id) == ["worker_lost", "completed"]
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 20
    if stream:
        assert call.lines[-1] == "data: [DONE]"
        assert done["text"] == call.text
    else:
        assert json.loads(call.lines[0])["usage"]["completion_tokens"] == 1000


def test_no_job_is_lost_when_one_of_two_workers_is_killed_under_load(stack: Stack) -> None:
    gateway = stack.gateway()
    victim = stack.worker(sim_max_num_seqs=4, **NEVER_BEGINS)
    ids = [submit(gateway, chat(f"load {i}", max_tokens=30)) for i in range(6)]
    wait_for(lambda: busy(victim) == 4, "it is busy")
    survivor = stack.worker(sim_max_num_seqs=4, **STEADY)
    ids += [submit(gateway, chat(f"load {i}", max_tokens=30)) for i in range(6, 30)]
    victim.kill()
    wait_for(lambda: states(gateway, ids) == {"completed"}, "every job completes")
    taken_back = [
        process.metric("flotilla_reaped_jobs_total", state="queued")
        for process in (gateway, survivor)
    ]
    assert survivor.metric("flotilla_jobs_retried_total") == sum(taken_back) == 4


def test_two_workers_share_a_queue(stack: Stack) -> None:
    gateway = stack.gateway()
    limits = {"sim_max_num_seqs": 4, **FAST}
    workers = [stack.worker(**limits), stack.worker(**limits)]
    first = [submit(gateway, endless(f"first {i}")) for i in range(8)]
    wait_for(lambda: [busy(worker) for worker in workers] == [4, 4], "each has half of them")
    calls = [Call(gateway, chat(f"then {i}", max_tokens=20, stream=True)) for i in range(16)]
    for job_id in first:
        http.post(f"{gateway.url}/jobs/{job_id}/cancel")
    join(calls)
    assert all(call.lines[-1] == "data: [DONE]" for call in calls)
    wait_for(lambda: sum(map(completed, workers)) == 16, "the workers know that all have ended")
    ran_at = Counter(job(gateway, job_id)["attempts"][0]["worker"] for job_id in first)
    assert sorted(ran_at.values()) == [4, 4]


def test_a_draining_worker_finishes_its_streams_and_claims_nothing_more(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(**FAST)
    call = Call(gateway, chat("drain me", max_tokens=400, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    worker.terminate()
    wait_for(lambda: drains(worker), "it drains")
    late = submit(gateway, chat("late", max_tokens=2))
    join([call])
    assert call.lines[-1] == "data: [DONE]"
    assert worker.popen.wait(60) == 0
    assert states(gateway, [late]) == {"queued"}
    stack.worker(**FAST)
    wait_for(lambda: states(gateway, [late]) == {"completed"}, "another one has claimed it")
    assert outcomes(gateway, late) == ["completed"]


def test_the_last_of_several_workers_that_drain_finishes_its_answer(stack: Stack) -> None:
    gateway = stack.gateway()
    workers = [stack.worker(**STEADY) for _ in range(3)]
    call = Call(gateway, chat("all end", max_tokens=50, ignore_eos=True, stream=True))
    wait_for(lambda: any(busy(worker) for worker in workers), "it runs")
    workers.sort(key=busy)
    for worker in workers:  # the one that has the job is the last
        worker.popen.terminate()
        if worker is not workers[-1]:
            assert worker.popen.wait(30) == 0
    join([call])
    assert workers[-1].popen.wait(30) == 0
    assert outcomes(gateway, call.job_id) == ["completed"]


def test_workers_that_are_all_stopped_at_one_time_finish_their_answers(stack: Stack) -> None:
    gateway = stack.gateway()
    workers = [stack.worker(**STEADY) for _ in range(4)]
    calls = [
        Call(gateway, chat(f"{n}", max_tokens=60, ignore_eos=True, stream=True)) for n in range(12)
    ]
    wait_for(lambda: in_progress(gateway, len(calls)), "all are in progress")
    for worker in workers:
        worker.popen.terminate()
    join(calls)
    assert all(call.lines[-1] == "data: [DONE]" for call in calls)
    assert [worker.popen.wait(30) for worker in workers] == [0] * len(workers)


def test_jobs_that_a_draining_worker_can_not_finish_go_to_another(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(drain_deadline_s=0.2, **NEVER_BEGINS)
    call = Call(gateway, chat("a prompt", max_tokens=3, stream=True))
    wait_for(lambda: in_progress(gateway, 1), "the job is in progress")
    worker.terminate()
    assert worker.popen.wait(60) == 0
    stack.worker(**FAST)
    join([call])
    assert call.lines[-1] == "data: [DONE]"
    assert outcomes(gateway, call.job_id) == ["drained", "completed"]


def test_a_second_signal_ends_a_draining_worker_at_once(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(drain_deadline_s=600, **FAST)
    Call(gateway, endless("endless", stream=True))
    wait_for(lambda: busy(worker) == 1, "it runs")
    worker.terminate()
    wait_for(lambda: drains(worker), "it drains")
    worker.terminate()
    assert worker.popen.wait(60) == 0


def test_a_worker_whose_engine_dies_releases_its_jobs_and_exits_with_an_error(
    stack: Stack,
) -> None:
    gateway = stack.gateway()
    worker = stack.worker(sim_faults="die_on_signal=SIGUSR1", **STEADY)
    fields = {"max_tokens": 1000, "ignore_eos": True}
    whole = Call(gateway, chat("whole", **fields))
    wait_for(lambda: busy(worker) == 1, "the whole one runs")
    streamed = Call(gateway, chat("streamed", stream=True, **fields))
    wait_for(lambda: len(streamed.events) > 25, "both run")
    worker.stop(signal.SIGUSR1)
    assert worker.popen.wait(60) == 1
    problem = wait_for(lambda: lost_worker(gateway), "operators are told")
    assert "its engine died" in problem
    survivor = stack.worker(**FAST)
    wait_for(lambda: not lost_worker(gateway), "another one has taken its place")
    join([whole, streamed])
    for call in (whole, streamed):
        assert call.status == 200
        done = job(gateway, call.job_id)
        assert done["usage"]["completion_tokens"] == 1000
        assert outcomes(gateway, call.job_id) == ["engine_died", "completed"]
    assert streamed.lines[-1] == "data: [DONE]"
    assert streamed.text == done["text"]
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 40


def lost_worker(gateway: Process) -> str:
    """The overview's sentence about a lost worker; empty if none is."""
    verdict = http.get(f"{gateway.url}/admin/overview").json()["verdict"]
    found = [p["sentence"] for p in verdict["problems"] if p["kind"] == "worker_lost"]
    return str(found[0]) if found else ""


def test_a_hung_engine_loses_its_jobs(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(sim_faults="hang_after_steps=3", engine_stall_s=0.5, **FAST)
    call = Call(gateway, chat("hangs", max_tokens=50, ignore_eos=True, stream=True))
    assert worker.popen.wait(60) == 1
    stack.worker(**FAST)
    join([call])
    assert call.lines[-1] == "data: [DONE]"
    assert job(gateway, call.job_id)["text"] == call.text


def test_a_worker_that_stood_still_does_not_blame_its_engine(stack: Stack) -> None:
    gateway = stack.gateway(**LONG_LEASE)
    worker = stack.worker(engine_stall_s=0.5, **LONG_LEASE, **STEADY)
    call = Call(gateway, chat("goes on", max_tokens=100, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    worker.stop(signal.SIGSTOP)
    time.sleep(1.5)
    worker.stop(signal.SIGCONT)
    join([call])
    assert outcomes(gateway, call.job_id) == ["completed"]
    worker.check()


@pytest.mark.parametrize(
    ("action", "options"),
    [("load_lora_adapter", {"lora_name": "a", "lora_path": "/a"}), ("stop_profile", {})],
)
def test_an_operators_call_that_takes_long_is_no_hung_engine(
    stack: Stack, action: str, options: dict[str, str]
) -> None:
    gateway = stack.gateway()
    worker = stack.worker(sim_faults="slow_operations_s=3", engine_stall_s=0.5, **FAST)
    call = Call(gateway, chat("goes on", max_tokens=400, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    operate = f"{gateway.url}/admin/pools/{MODEL}/{action}"
    assert http.post(operate, json=options).status_code == 200
    join([call])
    assert call.lines[-1] == "data: [DONE]"
    assert outcomes(gateway, call.job_id) == ["completed"]
    assert worker.popen.poll() is None


def test_a_job_that_kills_its_workers_fails_after_max_attempts(stack: Stack) -> None:
    gateway = stack.gateway(max_attempts=2)
    poison = {"sim_faults": "kill_on_prompt=POISON", "max_attempts": 2, **FAST}
    victim = stack.worker(**poison)
    call = Call(gateway, chat("POISON", max_tokens=5))
    assert victim.popen.wait(60) == -signal.SIGKILL
    assert stack.worker(wait=False, **poison).popen.wait(60) == -signal.SIGKILL
    stack.worker(**FAST)
    join([call])
    assert call.status == 500
    assert json.loads(call.lines[0])["error"]["code"] == "too_many_attempts"


def test_a_worker_that_was_paused_can_not_write_any_more(stack: Stack) -> None:
    gateway = stack.gateway()
    zombie = stack.worker(**STEADY)
    call = Call(gateway, chat("a prompt", max_tokens=1000, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    zombie.stop(signal.SIGSTOP)
    stack.worker(**FAST)
    join([call])
    assert call.lines[-1] == "data: [DONE]"
    zombie.stop(signal.SIGCONT)
    wait_for(lambda: zombie.metric("flotilla_fenced_writes_total") == 1, "it is fenced")
    done = job(gateway, call.job_id)
    assert done["state"] == "completed"
    assert done["text"] == call.text


def test_a_second_worker_with_a_live_id_is_refused_and_a_dead_ones_id_is_free_again(
    stack: Stack,
) -> None:
    gateway, first = stack.gateway(), stack.worker(worker_id="w-same", **FAST)
    second = stack.worker(wait=False, worker_id="w-same", **FAST)
    assert second.popen.wait(60) == 2
    assert "FLOTILLA_WORKER_ID=w-same" in second.log.read_text()
    assert http.post(f"{gateway.url}{CHAT}", json=chat("Hello"), timeout=60).status_code == 200
    first.kill()
    third = stack.worker(worker_id="w-same", **FAST)
    assert third.popen.poll() is None


def three_jobs(gateway: Process) -> list[str]:
    """Three jobs that run, with a lease that no test waits for."""
    ids = [submit(gateway, chat("word " * 20)) for _ in range(3)]
    wait_for(lambda: states(gateway, ids) == {"in_progress"}, "the jobs are in progress")
    return ids


def all_queued(gateway: Process, ids: list[str]) -> None:
    wait_for(lambda: states(gateway, ids) == {"queued"}, "the jobs are queued again")


def test_jobs_of_killed_workers_are_queued_again_long_before_their_lease_expires(
    stack: Stack,
) -> None:
    gateway = stack.gateway(**LONG_LEASE)
    for _ in range(KILLS):
        victim = stack.worker(**LONG_LEASE, **NEVER_BEGINS)
        ids = three_jobs(gateway)
        victim.kill()
        all_queued(gateway, ids)
        for job_id in ids:
            http.post(f"{gateway.url}/jobs/{job_id}/cancel")
    assert gateway.metric("flotilla_lost_workers_total") == KILLS


def test_jobs_of_a_worker_that_is_killed_as_soon_as_it_has_them_are_queued_again(
    stack: Stack,
) -> None:
    gateway = stack.gateway(**LONG_LEASE)
    stack.worker(**LONG_LEASE, **NEVER_BEGINS).kill()  # so that the model is known
    ids = [submit(gateway, chat("word " * 20)) for _ in range(3)]
    victim = stack.worker(wait=False, **LONG_LEASE, **NEVER_BEGINS)
    wait_for(lambda: "in_progress" in states(gateway, ids), "it has claimed a job")
    victim.kill()
    all_queued(gateway, ids)


def test_the_maintenance_process_notices_it_without_a_gateway(stack: Stack) -> None:
    gateway, maintenance = stack.gateway(**LONG_LEASE), stack.maintenance(**LONG_LEASE)
    # A worker of another pool, which stays. A detector that has just started, or had no CPU time
    # for a second, reports no lost worker as long as Redis shows no subscriber at all.
    stack.worker(served_model_name="other", **LONG_LEASE, **NEVER_BEGINS)
    victim = stack.worker(**LONG_LEASE, **NEVER_BEGINS)
    three_jobs(gateway)
    has_run = "flotilla_maintenance_last_run_timestamp_seconds"
    wait_for(lambda: gateway.metric(has_run), "the maintenance process works")
    gateway.kill()
    victim.kill()
    successor = stack.worker(**LONG_LEASE, **NEVER_BEGINS)
    wait_for(lambda: busy(successor) == 3, "they are queued again, and claimed")
    maintenance.check()


def test_a_worker_whose_connections_are_cut_goes_on(stack: Stack) -> None:
    """It subscribes again within some ms; if not soon enough, it is fenced and gets other jobs."""
    gateway = stack.gateway(**LONG_LEASE)
    worker = stack.worker(**LONG_LEASE, **STEADY)
    ids = [submit(gateway, chat("cut", max_tokens=100, ignore_eos=True)) for _ in range(8)]
    wait_for(lambda: states(gateway, ids) == {"in_progress"}, "the jobs are in progress")
    steps = "flotilla_engine_steps_total"
    with redis.Redis.from_url(stack.redis_url) as client:
        for n in range(10):
            client.client_kill_filter(_type="pubsub")
            wait_for(lambda after=2 * n: worker.metric(steps) > after, "it has gone on")
    wait_for(lambda: states(gateway, ids) == {"completed"}, "all are completed")
    for job_id in ids:
        assert job(gateway, job_id)["usage"]["completion_tokens"] == 100
    worker.check()


def test_a_worker_that_stands_still_with_open_connections_loses_its_jobs(stack: Stack) -> None:
    """Stopped, as if its machine had lost power: nothing closes its connections."""
    gateway = stack.gateway()
    victim = stack.worker(**NEVER_BEGINS)
    ids = three_jobs(gateway)
    victim.stop(signal.SIGSTOP)
    all_queued(gateway, ids)
    victim.stop(signal.SIGCONT)
    wait_for(lambda: states(gateway, ids) == {"in_progress"}, "it claims them again")
    victim.check()

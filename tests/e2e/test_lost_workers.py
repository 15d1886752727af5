"""Workers that are killed, paused or drained, or whose engine dies: what happens to their jobs."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, Call, chat, in_progress, job
from tests.harness.fleet import LEASE_S, Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

FAST = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}
SLOW_FIRST_TOKEN = {**FAST, "sim_prefill_us_per_token": 200_000}
"""A prompt of 20 tokens takes four seconds before its first token."""


@pytest.mark.parametrize("stream", [True, False])
def test_a_job_whose_worker_is_killed_before_its_first_token_completes_elsewhere(
    stack: Stack, stream: bool
) -> None:
    gateway = stack.gateway()
    victim = stack.worker(**SLOW_FIRST_TOKEN)
    call = Call(gateway, chat("a prompt " * 10, max_tokens=5, stream=stream))
    wait_for(lambda: in_progress(gateway, 1), "the job is in progress")
    victim.kill()
    stack.worker(**FAST)
    call.join(30)
    assert call.status == 200
    done = job(gateway, call.headers["x-flotilla-job-id"])
    assert done["state"] == "completed"
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["worker_lost", "completed"]


@pytest.mark.parametrize("stream", [True, False])
def test_an_answer_whose_worker_is_killed_in_the_middle_is_continued_by_another(
    stack: Stack, stream: bool
) -> None:
    """tests/e2e/test_continued_answers.py has all classes of requests."""
    gateway = stack.gateway()
    victim = stack.worker(**FAST)
    call = Call(gateway, chat("go on", max_tokens=2000, ignore_eos=True, stream=stream))
    wait_for(lambda: victim.metric("flotilla_engine_steps_total") > 20, "it has begun")
    victim.kill()
    survivor = stack.worker(**FAST)
    call.join(60)
    assert call.status == 200
    done = job(gateway, call.headers["x-flotilla-job-id"])
    assert done["usage"]["completion_tokens"] == 2000
    assert [attempt["outcome"] for attempt in done["attempts"]] == ["worker_lost", "completed"]
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 20
    if stream:
        assert call.lines[-1] == "data: [DONE]"
        assert done["text"] == call.text
    else:
        assert json.loads(call.lines[0])["usage"]["completion_tokens"] == 2000


def test_no_waiting_job_is_lost_when_one_of_two_workers_is_killed_under_load(stack: Stack) -> None:
    gateway = stack.gateway()
    # Slow enough that both workers are busy until one is killed, on a loaded machine too.
    limits = {"sim_max_num_seqs": 4, "sim_step_ms": 40, "sim_step_us_per_seq": 0}
    workers = [stack.worker(**limits), stack.worker(**limits)]
    with httpx.Client(base_url=gateway.url, timeout=30) as api:
        ids = [
            api.post("/jobs", json={"body": chat(f"load {i}", max_tokens=30)}).json()["id"]
            for i in range(60)
        ]
        wait_for(
            lambda: all(w.metric("flotilla_worker_slots", use="busy") == 4 for w in workers),
            "both workers are busy",
        )
        workers[0].kill()
        wait_for(
            lambda: all(api.get(f"/jobs/{i}").json()["state"] == "completed" for i in ids),
            "every job completes",
        )
    retried = workers[1].metric("flotilla_jobs_retried_total")
    taken_back = [
        process.metric("flotilla_reaped_jobs_total", state="queued")
        for process in (gateway, workers[1])
    ]
    assert 1 <= retried == sum(taken_back) <= 4


def test_two_workers_share_a_queue(stack: Stack) -> None:
    gateway = stack.gateway()
    limits = {"sim_max_num_seqs": 4, "sim_step_ms": 5, "sim_step_us_per_seq": 0}
    workers = [stack.worker(**limits), stack.worker(**limits)]
    calls = [Call(gateway, chat(f"share {i}", max_tokens=20, stream=True)) for i in range(24)]
    for call in calls:
        call.join(30)
    assert all(call.lines[-1] == "data: [DONE]" for call in calls)
    shares = [
        worker.metric("flotilla_jobs_finished_total", state="completed") for worker in workers
    ]
    assert sum(shares) == 24
    assert min(shares) >= 4


def test_a_draining_worker_finishes_its_streams_and_claims_nothing_more(
    stack: Stack,
) -> None:
    gateway = stack.gateway()
    worker = stack.worker(**FAST)
    call = Call(gateway, chat("drain me", max_tokens=200, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    worker.terminate()
    wait_for(lambda: httpx.get(f"{worker.url}/readyz").status_code == 503, "it drains")
    late = Call(gateway, chat("late", max_tokens=2, stream=True))
    call.join(30)
    assert call.lines[-1] == "data: [DONE]"
    assert worker.popen.wait(20) == 0
    stack.worker(**FAST)
    late.join(30)
    assert late.lines[-1] == "data: [DONE]"
    assert job(gateway, late.headers["x-flotilla-job-id"])["attempts"][0]["outcome"] == "completed"


def test_jobs_that_a_draining_worker_can_not_finish_go_to_another(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(drain_deadline_s=0.2, **SLOW_FIRST_TOKEN)
    call = Call(gateway, chat("a prompt " * 20, max_tokens=3, stream=True))
    wait_for(lambda: in_progress(gateway, 1), "the job is in progress")
    worker.terminate()
    assert worker.popen.wait(20) == 0
    stack.worker(**FAST)
    call.join(30)
    assert call.lines[-1] == "data: [DONE]"
    attempts = job(gateway, call.headers["x-flotilla-job-id"])["attempts"]
    assert [attempt["outcome"] for attempt in attempts] == ["drained", "completed"]


def test_a_second_signal_ends_a_draining_worker_at_once(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(drain_deadline_s=600, **FAST)
    Call(gateway, chat("endless", max_tokens=8000, ignore_eos=True, stream=True))
    wait_for(lambda: worker.metric("flotilla_worker_slots", use="busy") == 1, "it runs")
    worker.terminate()
    wait_for(lambda: httpx.get(f"{worker.url}/readyz").status_code == 503, "it drains")
    worker.terminate()
    assert worker.popen.wait(20) == 0


def test_a_worker_whose_engine_dies_releases_its_jobs_and_exits_with_an_error(
    stack: Stack,
) -> None:
    gateway = stack.gateway()
    worker = stack.worker(sim_faults="die_after_steps=200", **FAST)
    whole = Call(gateway, chat("whole", max_tokens=400, ignore_eos=True))
    streamed = Call(gateway, chat("streamed", max_tokens=400, ignore_eos=True, stream=True))
    assert worker.popen.wait(30) == 1
    problem = wait_for(lambda: lost_worker(gateway), "operators are told")
    assert "its engine died" in problem
    survivor = stack.worker(**FAST)
    wait_for(lambda: not lost_worker(gateway), "another one has taken its place")
    for call in (whole, streamed):
        call.join(30)
        assert call.status == 200
        done = job(gateway, call.headers["x-flotilla-job-id"])
        assert done["usage"]["completion_tokens"] == 400
        assert [each["outcome"] for each in done["attempts"]] == ["engine_died", "completed"]
    assert streamed.lines[-1] == "data: [DONE]"
    assert streamed.text == done["text"]
    assert survivor.metric("flotilla_tokens_taken_over_total") >= 40


def lost_worker(gateway: Process) -> str:
    """The overview's sentence about a lost worker; empty if none is."""
    verdict = httpx.get(f"{gateway.url}/admin/overview").json()["verdict"]
    found = [p["sentence"] for p in verdict["problems"] if p["kind"] == "worker_lost"]
    return str(found[0]) if found else ""


def test_a_hung_engine_loses_its_jobs(stack: Stack) -> None:
    gateway = stack.gateway()
    worker = stack.worker(sim_faults="hang_after_steps=3", engine_stall_s=0.5, **FAST)
    call = Call(gateway, chat("hangs", max_tokens=50, ignore_eos=True, stream=True))
    assert worker.popen.wait(30) == 1
    stack.worker(**FAST)
    call.join(30)
    assert call.lines[-1] == "data: [DONE]"
    assert job(gateway, call.headers["x-flotilla-job-id"])["text"] == call.text


def test_a_job_that_kills_its_workers_fails_after_max_attempts(stack: Stack) -> None:
    gateway = stack.gateway(max_attempts=2)
    poison = {"sim_faults": "kill_on_prompt=POISON", "max_attempts": 2, **FAST}
    victim = stack.worker(**poison)
    call = Call(gateway, chat("POISON", max_tokens=5))
    assert victim.popen.wait(30) == -signal.SIGKILL
    assert stack.worker(wait=False, **poison).popen.wait(30) == -signal.SIGKILL
    stack.worker(**FAST)
    call.join(30)
    assert call.status == 500
    assert json.loads(call.lines[0])["error"]["code"] == "too_many_attempts"


def test_a_worker_that_was_paused_can_not_write_any_more(stack: Stack) -> None:
    gateway = stack.gateway()
    zombie = stack.worker(**SLOW_FIRST_TOKEN)
    call = Call(gateway, chat("a prompt " * 10, max_tokens=5, stream=True))
    wait_for(lambda: in_progress(gateway, 1), "the job is in progress")
    zombie.stop(signal.SIGSTOP)
    stack.worker(**FAST)
    call.join(10 * LEASE_S)
    assert call.lines[-1] == "data: [DONE]"
    zombie.stop(signal.SIGCONT)
    wait_for(lambda: zombie.metric("flotilla_fenced_writes_total") == 1, "it is fenced")
    done = job(gateway, call.headers["x-flotilla-job-id"])
    assert done["state"] == "completed"
    assert done["text"] == call.text


@pytest.fixture
def fragile(own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A stack on a Redis that the test kills."""
    stack = Stack(own_redis.url, tmp_path_factory.mktemp("fragile"))
    yield stack
    stack.close()


def test_redis_is_killed_and_comes_back_in_the_middle_of_a_stream(
    fragile: Stack, own_redis: RedisServer
) -> None:
    gateway = fragile.gateway(lease_s=10)
    fragile.worker(lease_s=10, sim_step_ms=20, sim_step_us_per_seq=0)
    call = Call(gateway, chat("redis", max_tokens=150, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    own_redis.stop(kill=True)
    wait_for(lambda: httpx.get(f"{gateway.url}/readyz").status_code == 503, "not ready")
    assert httpx.get(f"{gateway.url}/healthz").status_code == 200
    refused = httpx.post(f"{gateway.url}{CHAT}", json=chat("now"))
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "redis_unavailable")
    own_redis.start()
    call.join(40)
    assert call.lines[-1] == "data: [DONE]"
    assert len([line for line in call.lines if '"content"' in line]) >= 150
    done = job(gateway, call.headers["x-flotilla-job-id"])
    assert done["text"] == call.text
    assert done["usage"]["completion_tokens"] == 150


def test_a_gateway_that_missed_frames_reads_them_from_the_log(stack: Stack) -> None:
    gateway = stack.gateway(keepalive_s=0.5)
    stack.worker(**FAST)
    call = Call(gateway, chat("gap", max_tokens=300, ignore_eos=True, stream=True))
    wait_for(lambda: call.text, "it streams")
    with httpx.Client() as _, _redis(stack) as client:
        for _ in range(3):
            client.client_kill_filter(_type="pubsub")  # every subscriber is cut off
    call.join(30)
    assert call.lines[-1] == "data: [DONE]"
    done = job(gateway, call.headers["x-flotilla-job-id"])
    assert (done["text"], done["usage"]["completion_tokens"]) == (call.text, 300)


def _redis(stack: Stack) -> Any:
    import redis

    return redis.Redis.from_url(stack.redis_url)


def test_a_second_worker_with_a_live_id_is_refused_and_a_dead_ones_id_is_free_again(
    stack: Stack,
) -> None:
    gateway, first = stack.gateway(), stack.worker(worker_id="w-same", **FAST)
    second = stack.worker(wait=False, worker_id="w-same", **FAST)
    assert second.popen.wait(40) == 2
    assert "FLOTILLA_WORKER_ID=w-same" in second.log.read_text()
    assert httpx.post(f"{gateway.url}{CHAT}", json=chat("Hello"), timeout=20).status_code == 200
    first.kill()
    third = stack.worker(worker_id="w-same", **FAST)
    assert third.popen.poll() is None

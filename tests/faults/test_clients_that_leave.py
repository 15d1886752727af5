"""A job whose client has left: it runs on for a grace, in which a client may come back."""

from __future__ import annotations

import contextlib
import re
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import httpx
import pytest

from tests.harness.client import CHAT, chat, http, job, states, submit
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

GRACE_S = 1.0
LONG_GRACE_S = 5.0
"""Of jobs to which a client comes back, also on a busy machine."""
HEADER = "x-flotilla-on-disconnect"


@pytest.fixture(scope="module")
def stack(module_stack: Stack) -> Stack:
    module_stack.worker(sim_step_ms=10, sim_step_us_per_seq=0)
    return module_stack


@pytest.fixture(scope="module")
def gateway(stack: Stack) -> Process:
    return stack.gateway(disconnect_grace_s=GRACE_S)


@pytest.fixture(scope="module")
def other(stack: Stack) -> Process:
    return stack.gateway(disconnect_grace_s=GRACE_S)


@pytest.fixture(scope="module")
def long_grace(stack: Stack) -> Process:
    """A gateway whose grace is longer than any test."""
    return stack.gateway(disconnect_grace_s=3600)


def request(max_tokens: int = 5000, **fields: Any) -> dict[str, Any]:
    return chat(max_tokens=max_tokens, **{"stream": True, "ignore_eos": True, **fields})


@contextlib.contextmanager
def reading(
    gateway: Process, at_least: int = 3, headers: dict[str, str] | None = None, **fields: Any
) -> Iterator[tuple[str, list[bytes]]]:
    """A client that has read the first events of a stream: the job's id, and the events."""
    body = request(**fields)
    with http.stream("POST", gateway.url + CHAT, json=body, headers=headers, timeout=60) as answer:
        assert answer.status_code == 200, answer.read()
        events: list[bytes] = []
        parts = answer.iter_raw()
        while len(events) < at_least:
            events += events_in(next(parts))
        yield answer.headers["x-flotilla-job-id"], events


def events_in(body: bytes) -> list[bytes]:
    data = re.sub(rb"(?m)^:.*\n", b"", body)
    return [block + b"\n\n" for block in data.split(b"\n\n")[:-1]]


def resume_path(gateway: Process, job_id: str, had: list[bytes]) -> str:
    crc = crc32(b"".join(had))
    return f"{gateway.url}/jobs/{job_id}/stream?after={len(had)}&crc32={crc:08x}"


def finish(gateway: Process, job_id: str) -> None:
    http.post(f"{gateway.url}/jobs/{job_id}/cancel")


def test_without_a_client_a_call_is_cancelled_after_the_grace(gateway: Process) -> None:
    with reading(gateway) as (job_id, _):
        left = time.monotonic()
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")
    assert time.monotonic() - left > GRACE_S * 0.8
    assert job(gateway, job_id)["error"]["code"] == "unattended"
    result = http.get(f"{gateway.url}/jobs/{job_id}/result")
    assert (result.status_code, result.json()["error"]["code"]) == (409, "unattended")


def test_an_answer_in_one_piece_is_cancelled_after_the_grace(gateway: Process) -> None:
    def running() -> set[str]:
        listed = http.get(f"{gateway.url}/jobs", params={"state": "in_progress"}).json()
        return {each["id"] for each in listed["data"]}

    url, before = httpx.URL(gateway.url), running()
    asked = httpx.Request("POST", gateway.url + CHAT, json=request(stream=False))
    head = [f"POST {CHAT} HTTP/1.1", *(f"{name}: {value}" for name, value in asked.headers.items())]
    with socket.create_connection((url.host, url.port)) as client:
        client.sendall("\r\n".join([*head, "", ""]).encode() + asked.content)
        (job_id,) = wait_for(lambda: running() - before, "it runs")
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")


def test_clients_that_come_back_in_time_keep_their_jobs(gateway: Process, other: Process) -> None:
    """To the answer's stream, to the job's events, or to wait for the job."""
    keep = {HEADER: f"keep_for={LONG_GRACE_S}"}
    with contextlib.ExitStack() as clients:
        opened = [clients.enter_context(reading(gateway, headers=keep)) for _ in range(3)]
    (streamed, had), (followed, _), (waited, _) = opened
    ids = [streamed, followed, waited]
    wait = f"{other.url}/jobs/{waited}?wait={LONG_GRACE_S * 1.5}"
    waiting = threading.Thread(target=lambda: http.get(wait, timeout=60))
    waiting.start()
    with (
        http.stream("GET", resume_path(other, streamed, had), timeout=60) as stream,
        http.stream("GET", f"{other.url}/jobs/{followed}/events", timeout=60) as events,
    ):
        assert (stream.status_code, events.status_code) == (200, 200)
        read_for(LONG_GRACE_S * 1.3, stream, events)
        assert states(other, ids) == {"in_progress"}
    waiting.join(60)
    # They have left again, so the grace begins anew.
    wait_for(lambda: states(gateway, ids) == {"cancelled"}, "they are cancelled")


def read_for(seconds: float, *answers: httpx.Response) -> None:
    """Read these answers in turn for so long."""
    parts, until = [answer.iter_raw() for answer in answers], time.monotonic() + seconds
    while time.monotonic() < until:
        for each in parts:
            next(each)


def test_cancel_ends_the_job_at_once(long_grace: Process) -> None:
    with reading(long_grace, headers={HEADER: "cancel"}) as (job_id, _):
        pass
    wait_for(lambda: job(long_grace, job_id)["state"] == "cancelled", "it is cancelled")


def test_a_job_that_is_kept_runs_to_its_end(gateway: Process) -> None:
    with reading(gateway, max_tokens=400, headers={HEADER: "keep"}) as (job_id, had):
        pass
    wait_for(lambda: job(gateway, job_id)["state"] == "completed", "it is complete")
    rest = http.get(resume_path(gateway, job_id, had))
    whole = http.get(f"{gateway.url}/jobs/{job_id}/result")
    assert b"".join(had) + rest.content == whole.content


def test_keep_for_some_seconds(gateway: Process) -> None:
    with reading(gateway, headers={HEADER: "keep_for=3"}) as (job_id, _):
        left = time.monotonic()
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")
    assert time.monotonic() - left > 2.5


@pytest.mark.parametrize("choice", ["forget", "keep_for=100000", "keep_for=-1"])
def test_another_choice_is_refused(gateway: Process, choice: str) -> None:
    headers, body = {HEADER: choice}, request(3)
    assert http.post(gateway.url + CHAT, json=body, headers=headers).status_code == 400
    job_body = {"endpoint": CHAT, "body": body}
    assert http.post(f"{gateway.url}/jobs", json=job_body, headers=headers).status_code == 400


def test_a_job_of_post_jobs_is_kept_unless_it_says_otherwise(gateway: Process) -> None:
    ids = []
    for more in ({}, {"on_disconnect": "cancel"}):
        body = {"endpoint": CHAT, "body": request(), **more}
        ids.append(http.post(f"{gateway.url}/jobs", json=body).json()["id"])
        with http.stream("GET", f"{gateway.url}/jobs/{ids[-1]}/stream") as answer:
            next(answer.iter_raw())
    wait_for(lambda: job(gateway, ids[1])["state"] == "cancelled", "it is cancelled")
    assert job(gateway, ids[0])["state"] in {"in_progress", "completed"}
    finish(gateway, ids[0])
    wrong = {"endpoint": CHAT, "body": request(), "on_disconnect": "x"}
    refused = http.post(f"{gateway.url}/jobs", json=wrong)
    assert refused.json()["error"]["param"] == "on_disconnect"


def test_a_killed_gateway(stack: Stack, other: Process) -> None:
    """Its clients come back elsewhere, or their jobs are cancelled; jobs of /jobs go on."""
    doomed = stack.gateway(disconnect_grace_s=LONG_GRACE_S)
    with contextlib.ExitStack() as clients:
        opened = [clients.enter_context(reading(doomed)) for _ in range(4)]
        kept = submit(doomed, request())
        doomed.kill()
        come_back, had = opened[0]
        with http.stream("GET", resume_path(other, come_back, had), timeout=60) as answer:
            assert answer.status_code == 200
            parts, left = answer.iter_raw(), [job_id for job_id, _ in opened[1:]]
            next(parts)
            wait_for(lambda: states(other, left) == {"cancelled"}, "cancelled")
            assert {job(other, job_id)["error"]["code"] for job_id in left} == {"unattended"}
            next(parts)
            assert job(other, come_back)["state"] == "in_progress"
    assert job(other, kept)["state"] == "in_progress"
    finish(other, kept)


def test_a_stopped_gateway_leaves_its_jobs_to_clients_that_come_back(
    stack: Stack, other: Process
) -> None:
    stopped = stack.gateway(disconnect_grace_s=LONG_GRACE_S, grace_s=1)
    with reading(stopped) as (job_id, had):
        stopped.terminate()
        stopped.popen.wait(60)
    with http.stream("GET", resume_path(other, job_id, had), timeout=60) as answer:
        assert answer.status_code == 200
        read_for(LONG_GRACE_S * 1.3, answer)
        assert job(other, job_id)["state"] == "in_progress"
    wait_for(lambda: job(other, job_id)["state"] == "cancelled", "it is cancelled")


def test_the_only_gateway_is_killed_and_started_again(
    own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """No process has seen the dead gateway: it is found in the set of gateways."""
    stack = Stack(own_redis.url, tmp_path_factory.mktemp("alone"))
    try:
        worker = stack.worker(sim_step_ms=10, sim_step_us_per_seq=0)
        first = stack.gateway(disconnect_grace_s=GRACE_S)
        with reading(first) as (job_id, _):
            first.kill()
        second = stack.gateway(disconnect_grace_s=GRACE_S)
        wait_for(lambda: job(second, job_id)["state"] == "cancelled", "it is cancelled")
        wait_for(lambda: worker.metric("flotilla_worker_slots", use="busy") == 0, "slot is free")
    finally:
        stack.close()

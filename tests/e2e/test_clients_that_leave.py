"""A job whose client has left: it runs on for a grace, in which a client may come back."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any
from zlib import crc32

import httpx
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

MODEL = "simulated"
CHAT = "/v1/chat/completions"
GRACE_S = 1.0
HEADER = "x-flotilla-on-disconnect"


@pytest.fixture(scope="module")
def stack(redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    stack.worker(sim_step_ms=10, sim_step_us_per_seq=0)
    yield stack
    stack.close()


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
    message = {"role": "user", "content": "hello"}
    fields = {"stream": True, "ignore_eos": True} | fields
    return {"model": MODEL, "messages": [message], "max_tokens": max_tokens, **fields}


@contextlib.contextmanager
def reading(
    gateway: Process, at_least: int = 3, headers: dict[str, str] | None = None, **fields: Any
) -> Iterator[tuple[str, list[bytes]]]:
    """A client that has read the first events of a stream: the job's id, and the events."""
    body = request(**fields)
    with httpx.stream("POST", gateway.url + CHAT, json=body, headers=headers, timeout=20) as answer:
        assert answer.status_code == 200, answer.read()
        events: list[bytes] = []
        parts = answer.iter_raw()
        while len(events) < at_least:
            events += events_in(next(parts))
        yield answer.headers["x-flotilla-job-id"], events


def events_in(body: bytes) -> list[bytes]:
    blocks = [block + b"\n\n" for block in body.split(b"\n\n")[:-1]]
    return [block for block in blocks if not block.startswith(b":")]


def job(gateway: Process, job_id: str) -> dict[str, Any]:
    found: dict[str, Any] = httpx.get(f"{gateway.url}/jobs/{job_id}").json()
    return found


def resume_path(gateway: Process, job_id: str, had: list[bytes]) -> str:
    crc = crc32(b"".join(had))
    return f"{gateway.url}/jobs/{job_id}/stream?after={len(had)}&crc32={crc:08x}"


def finish(gateway: Process, job_id: str) -> None:
    httpx.post(f"{gateway.url}/jobs/{job_id}/cancel")


def test_without_a_client_a_call_is_cancelled_after_the_grace(gateway: Process) -> None:
    with reading(gateway) as (job_id, _):
        pass
    left = time.monotonic()
    assert job(gateway, job_id)["state"] == "in_progress"
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")
    assert time.monotonic() - left > GRACE_S * 0.8
    assert job(gateway, job_id)["error"]["code"] == "unattended"
    result = httpx.get(f"{gateway.url}/jobs/{job_id}/result")
    assert (result.status_code, result.json()["error"]["code"]) == (409, "unattended")


def test_an_answer_in_one_piece_is_cancelled_after_the_grace(gateway: Process) -> None:
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(gateway.url + CHAT, json=request(stream=False), timeout=0.5)
    (found,) = httpx.get(f"{gateway.url}/jobs", params={"limit": 1}).json()["data"]
    wait_for(lambda: job(gateway, found["id"])["state"] == "cancelled", "it is cancelled")


@pytest.mark.parametrize("way", ["stream", "events", "wait"])
def test_a_client_that_comes_back_in_time_keeps_the_job(
    gateway: Process, other: Process, way: str
) -> None:
    with reading(gateway) as (job_id, had):
        pass
    if way == "wait":
        answer = httpx.get(f"{other.url}/jobs/{job_id}?wait={GRACE_S * 2.5}", timeout=30)
        assert answer.json()["state"] == "in_progress"
    else:
        path = f"{other.url}/jobs/{job_id}/events"
        if way == "stream":
            path = resume_path(other, job_id, had)
        with httpx.stream("GET", path, timeout=20) as answer:
            until = time.monotonic() + GRACE_S * 2.5
            for _ in answer.iter_raw():
                if time.monotonic() > until:
                    break
            assert job(other, job_id)["state"] == "in_progress"
    # It has left again, so the grace begins anew.
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")


@pytest.mark.parametrize("header", [False, True])
def test_cancel_ends_the_job_at_once(long_grace: Process, header: bool) -> None:
    choice: Any = (
        {"headers": {HEADER: "cancel"}} if header else {"flotilla": {"on_disconnect": "cancel"}}
    )
    with reading(long_grace, **choice) as (job_id, _):
        pass
    wait_for(lambda: job(long_grace, job_id)["state"] == "cancelled", "it is cancelled")


@pytest.mark.parametrize("header", [False, True])
def test_a_job_that_is_kept_runs_to_its_end(gateway: Process, header: bool) -> None:
    choice: Any = (
        {"headers": {HEADER: "keep"}} if header else {"flotilla": {"on_disconnect": "keep"}}
    )
    with reading(gateway, max_tokens=400, **choice) as (job_id, had):
        pass
    wait_for(lambda: job(gateway, job_id)["state"] == "completed", "it is complete")
    rest = httpx.get(resume_path(gateway, job_id, had))
    whole = httpx.get(f"{gateway.url}/jobs/{job_id}/result")
    assert b"".join(had) + rest.content == whole.content


def test_keep_for_some_seconds(gateway: Process) -> None:
    with reading(gateway, headers={HEADER: "keep_for=3"}) as (job_id, _):
        pass
    left = time.monotonic()
    wait_for(lambda: job(gateway, job_id)["state"] == "cancelled", "it is cancelled")
    assert time.monotonic() - left > 2.5


@pytest.mark.parametrize(
    ("headers", "fields"),
    [
        ({HEADER: "forget"}, {}),
        ({HEADER: "keep_for=100000"}, {}),
        ({HEADER: "keep_for=-1"}, {}),
        ({}, {"flotilla": {"on_disconnect": "x"}}),
        ({}, {"flotilla": {"on_disconnect": 3}}),
        ({}, {"flotilla": {"other": "keep"}}),
        ({}, {"flotilla": "keep"}),
    ],
)
def test_another_choice_is_refused(
    gateway: Process, headers: dict[str, str], fields: dict[str, Any]
) -> None:
    body = request(3, **fields)
    assert httpx.post(gateway.url + CHAT, json=body, headers=headers).status_code == 400
    job_body = {"endpoint": CHAT, "body": body}
    assert httpx.post(f"{gateway.url}/jobs", json=job_body, headers=headers).status_code == 400


def test_a_job_of_post_jobs_is_kept_unless_it_says_otherwise(gateway: Process) -> None:
    ids = []
    for more in ({}, {"on_disconnect": "cancel"}):
        body = {"endpoint": CHAT, "body": request(1000), **more}
        ids.append(httpx.post(f"{gateway.url}/jobs", json=body).json()["id"])
        with httpx.stream("GET", f"{gateway.url}/jobs/{ids[-1]}/stream") as answer:
            next(answer.iter_raw())
    wait_for(lambda: job(gateway, ids[1])["state"] == "cancelled", "it is cancelled")
    assert job(gateway, ids[0])["state"] in {"in_progress", "completed"}
    finish(gateway, ids[0])
    wrong = {"endpoint": CHAT, "body": request(), "on_disconnect": "x"}
    refused = httpx.post(f"{gateway.url}/jobs", json=wrong)
    assert refused.json()["error"]["param"] == "on_disconnect"


def test_a_killed_gateway(stack: Stack, other: Process) -> None:
    """Its clients come back elsewhere, or their jobs are cancelled; jobs of /jobs go on."""
    doomed = stack.gateway(disconnect_grace_s=GRACE_S)
    with contextlib.ExitStack() as clients:
        opened = [clients.enter_context(reading(doomed)) for _ in range(4)]
        body = {"endpoint": CHAT, "body": request(5000)}
        kept = httpx.post(f"{doomed.url}/jobs", json=body).json()["id"]
        doomed.kill()
        come_back, had = opened[0]
        with httpx.stream("GET", resume_path(other, come_back, had), timeout=20) as answer:
            assert answer.status_code == 200
            parts = answer.iter_raw()
            next(parts)
            killed = time.monotonic()
            for job_id, _ in opened[1:]:
                wait_for(lambda i=job_id: job(other, i)["state"] == "cancelled", "cancelled")
                assert job(other, job_id)["error"]["code"] == "unattended"
            assert time.monotonic() - killed < 30
            next(parts)
            assert job(other, come_back)["state"] == "in_progress"
    assert job(other, kept)["state"] == "in_progress"
    finish(other, kept)


def test_a_stopped_gateway_leaves_its_jobs_to_clients_that_come_back(
    stack: Stack, other: Process
) -> None:
    grace_s = 4 * GRACE_S  # the process may need a second to end
    stopped = stack.gateway(disconnect_grace_s=grace_s, grace_s=1)
    with reading(stopped) as (job_id, had):
        stopped.terminate()
        stopped.popen.wait(20)
    with httpx.stream("GET", resume_path(other, job_id, had), timeout=20) as answer:
        assert answer.status_code == 200
        until = time.monotonic() + grace_s * 2
        for _ in answer.iter_raw():
            if time.monotonic() > until:
                break
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
        with own_redis.client() as client:
            wait_for(lambda: client.scard("flotilla:{fleet}:gateways") == 1, "one is left")
    finally:
        stack.close()


def test_a_gateway_that_loses_its_redis_connections_keeps_its_clients(
    gateway: Process, other: Process, redis_server: RedisServer
) -> None:
    with httpx.stream("POST", gateway.url + CHAT, json=request(700), timeout=20) as answer:
        body, cut = b"", 0
        for part in answer.iter_raw():
            body += part
            if cut < 5 and len(events_in(body)) > 60 * (cut + 1):
                with redis_server.client() as client:
                    client.client_kill_filter(_type="pubsub")
                cut += 1
        assert cut == 5
        assert events_in(body)[-1] == b"data: [DONE]\n\n"
        path = f"{gateway.url}/jobs/{answer.headers['x-flotilla-job-id']}/result"
        assert b"".join(events_in(body)) == httpx.get(path).content

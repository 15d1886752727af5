"""What clients see when Redis is killed, full, slow or replaced, or cuts its connections."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, Call, chat, http, job, join, submit
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, SentinelGroup
from tests.harness.waiting import wait_for

FAST = {"sim_step_ms": 1, "sim_step_us_per_seq": 0}
STEADY = {"sim_step_ms": 25, "sim_step_us_per_seq": 0}
TOKENS = 200
STREAMS = 4
CUTS = 4


def body(text: str, **fields: Any) -> dict[str, Any]:
    return chat(text, **{"max_tokens": TOKENS, "ignore_eos": True, **fields})


def prompt(call: Call) -> str:
    return str(call.body["messages"][0]["content"])


def check_no_splice(streams: list[Call], right: dict[str, str]) -> None:
    """Whatever a client got is the beginning of its answer; a complete one is the whole answer."""
    for stream in streams:
        whole = right[prompt(stream)]
        assert whole.startswith(stream.text)
        assert stream.error or stream.text == whole


def begin(stack: Stack, tokens: int = TOKENS) -> tuple[Process, list[Call], dict[str, str]]:
    """A gateway with a worker, streams that have begun there, and the right answers."""
    gateway, quick = stack.gateway(), stack.worker(**FAST)
    prompts = [f"prompt {n}" for n in range(STREAMS)]
    bodies = [body(text, stream=True, max_tokens=tokens) for text in prompts]
    undisturbed = [Call(gateway, each) for each in bodies]
    join(undisturbed)
    assert not any(call.error for call in undisturbed)
    quick.terminate()
    quick.popen.wait(60)
    stack.worker(**STEADY)
    streams = [Call(gateway, each) for each in bodies]
    wait_for(lambda: all(len(each.events) > 10 for each in streams), "all streams have begun")
    return gateway, streams, {prompt(call): call.text for call in undisturbed}


def answers_again(gateway: Process) -> None:
    """The gateway takes and answers new calls, at once or soon."""

    def answered() -> bool:
        try:
            answer = http.post(gateway.url + CHAT, json=body("again", max_tokens=3), timeout=10)
        except httpx.TimeoutException:
            return False
        assert answer.status_code in {200, 404, 503}, answer.text  # 404: no model is known yet
        return answer.status_code == 200

    wait_for(answered, "a new call is answered")


@pytest.fixture
def fleet(own_redis: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """On a Redis of its own."""
    fleet = Stack(own_redis.url, tmp_path_factory.mktemp("fleet"))
    yield fleet
    fleet.close()


def test_killed_with_its_append_only_file_every_answer_is_whole(
    fleet: Stack, own_redis: RedisServer
) -> None:
    gateway, streams, right = begin(fleet)
    own_redis.stop(kill=True)
    wait_for(lambda: http.get(f"{gateway.url}/readyz").status_code == 503, "not ready")
    assert http.get(f"{gateway.url}/healthz").status_code == 200
    refused = http.post(f"{gateway.url}{CHAT}", json=body("now"), timeout=60)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "redis_unavailable")
    own_redis.start()
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    for stream in streams:
        done = job(gateway, stream.job_id)
        assert (done["text"], done["usage"]["completion_tokens"]) == (stream.text, TOKENS)
    answers_again(gateway)


def test_restarted_without_its_data_readers_get_stream_reset(
    fleet: Stack, own_redis: RedisServer
) -> None:
    gateway, streams, right = begin(fleet, tokens=2000)
    kept = submit(gateway, body("kept", max_tokens=2000))
    with own_redis.client() as client:
        client.config_set("appendonly", "no")
    own_redis.stop(kill=True)
    own_redis.options["appendonly"] = "no"
    own_redis.start()
    join(streams)
    assert {stream.error for stream in streams} == {"stream_reset"}
    check_no_splice(streams, right)
    answers_again(gateway)
    assert http.get(f"{gateway.url}/jobs/{kept}").status_code == 404


def test_with_full_memory_running_answers_go_on_and_new_calls_get_503(
    fleet: Stack, own_redis: RedisServer
) -> None:
    gateway, streams, right = begin(fleet)
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
        refused = http.post(gateway.url + CHAT, json=body("more"), timeout=60)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert refused.json()["error"]["code"]
        join(streams)
        client.config_set("maxmemory", 0)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(gateway)


def test_with_a_full_disk_answers_pause_and_new_calls_get_503_until_there_is_room(
    fleet: Stack, own_redis: RedisServer
) -> None:
    gateway, streams, right = begin(fleet)
    own_redis.limit_file_size(1)

    def refused() -> bool:
        try:
            answer = http.post(gateway.url + CHAT, json=body("more", max_tokens=1), timeout=2)
        except httpx.TimeoutException:  # it was queued by the last write, and its answer pauses
            return False
        return answer.status_code == 503 and "retry-after" in answer.headers

    wait_for(refused, "new calls are refused")
    assert http.get(f"{gateway.url}/readyz").status_code == 503
    assert http.get(f"{gateway.url}/healthz").status_code == 200  # a restart would not help
    own_redis.limit_file_size(None)
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(gateway)


def test_while_it_stands_still_answers_pause(fleet: Stack, own_redis: RedisServer) -> None:
    gateway, streams, right = begin(fleet)
    for _ in range(3):
        own_redis.signal(signal.SIGSTOP)
        time.sleep(0.5)
        own_redis.signal(signal.SIGCONT)
        time.sleep(0.1)
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(gateway)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[SentinelGroup]:
    group = SentinelGroup(tmp_path)
    try:
        group.start()
        yield group
    finally:
        group.close()


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_after_a_failover_the_fleet_goes_on_with_the_new_master(
    group: SentinelGroup, tmp_path: Path, how: str
) -> None:
    """Replication is asynchronous: an answer is whole, or ends with an error; never spliced."""
    stack = Stack(group.url, tmp_path)
    master, replica = group.servers
    try:
        gateway, streams, right = begin(stack)
        if how == "killed":
            master.stop(kill=True)
        else:
            master.signal(signal.SIGSTOP)
        wait_for(lambda: group.master_port() == replica.port, "the replica is master")
        answers_again(gateway)
        join(streams)
        check_no_splice(streams, right)
        assert {stream.error for stream in streams} <= {"", "stream_reset", "log_lost"}
        if how == "stopped":
            master.signal(signal.SIGCONT)
            answers_again(gateway)
    finally:
        stack.close()


def test_streams_go_on_when_connections_to_redis_are_cut(
    stack: Stack, redis_server: RedisServer
) -> None:
    """Those of subscribers, or all; with a lease that no client waits for."""
    gateway = stack.gateway(lease_s=600)
    for _ in range(2):
        stack.worker(lease_s=600, **STEADY)
    calls = [Call(gateway, body(f"long {n}", stream=True)) for n in range(6)]
    long = [*calls]
    with redis_server.client() as client:
        for cut in range(CUTS):
            events = (cut + 1) * TOKENS // (CUTS + 2)
            wait_for(
                lambda n=events: all(len(call.events) > n for call in long), "the streams go on"
            )
            if cut % 2:
                client.client_kill_filter(_type="normal", skipme=True)
            client.client_kill_filter(_type="pubsub")
            calls += [Call(gateway, body("short", max_tokens=20, stream=True)) for _ in range(6)]
    join(calls)
    for call in calls:
        assert (call.status, call.error) == (200, "")
        whole = http.get(f"{gateway.url}/jobs/{call.job_id}/result").text
        assert call.events == [line[6:] for line in whole.splitlines() if line]
        assert job(gateway, call.job_id)["usage"]["completion_tokens"] == call.body["max_tokens"]

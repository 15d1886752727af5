"""What clients see when Redis fails; the table in the README, section "When Redis fails"."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, SentinelGroup
from tests.harness.waiting import wait_for

CHAT = "/v1/chat/completions"
FAST = {"sim_step_ms": 25, "sim_step_us_per_seq": 0}
TOKENS = 100
STREAMS = 4


def body(text: str, **fields: Any) -> dict[str, Any]:
    return {
        "model": "simulated",
        "messages": [{"role": "user", "content": text}],
        "max_tokens": TOKENS,
        "ignore_eos": True,
        **fields,
    }


class Stream(threading.Thread):
    """A streamed call in a thread of its own."""

    def __init__(self, gateway: Process, text: str) -> None:
        super().__init__(daemon=True)
        self.gateway, self.prompt = gateway, text
        self.status, self.job_id = 0, ""
        self.events: list[str] = []
        self.start()

    def run(self) -> None:
        request = body(self.prompt, stream=True)
        with httpx.stream("POST", self.gateway.url + CHAT, json=request, timeout=60) as answer:
            self.status = answer.status_code
            self.job_id = answer.headers.get("x-flotilla-job-id", "")
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    self.events.append(line[6:])

    @property
    def text(self) -> str:
        chunks = [json.loads(event) for event in self.events if '"choices"' in event]
        return "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks)

    @property
    def error(self) -> str:
        """The code of the error that it ended with; empty if it is complete."""
        if self.events[-1] == "[DONE]":
            return ""
        return str(json.loads(self.events[-1])["error"]["code"])


def whole_answers(gateway: Process, prompts: list[str]) -> dict[str, str]:
    """What an undisturbed fleet answers to each prompt."""
    streams = [Stream(gateway, prompt) for prompt in prompts]
    join(streams)
    assert not any(stream.error for stream in streams)
    return {stream.prompt: stream.text for stream in streams}


def check_no_splice(streams: list[Stream], right: dict[str, str]) -> None:
    """Whatever a client got is the beginning of its answer; a complete one is the whole answer."""
    for stream in streams:
        assert right[stream.prompt].startswith(stream.text)
        assert stream.error or stream.text == right[stream.prompt]


def begin(gateway: Process) -> tuple[list[Stream], dict[str, str]]:
    """Streams that have begun, and the right answers."""
    prompts = [f"prompt {n}" for n in range(STREAMS)]
    right = whole_answers(gateway, prompts)
    streams = [Stream(gateway, prompt) for prompt in prompts]
    wait_for(lambda: all(len(each.events) > 10 for each in streams), "all streams have begun")
    return streams, right


def join(streams: list[Stream]) -> None:
    for stream in streams:
        stream.join(60)
        assert not stream.is_alive(), "a client hangs"


def answers_again(gateway: Process) -> None:
    """The gateway takes and answers new calls, at once or soon."""

    def answered() -> bool:
        try:
            answer = httpx.post(gateway.url + CHAT, json=body("again", max_tokens=3), timeout=10)
        except httpx.TimeoutException:
            return False
        assert answer.status_code in {200, 404, 503}, answer.text  # 404: no model is known yet
        return answer.status_code == 200

    wait_for(answered, "a new call is answered")


@pytest.fixture
def fleet(own_redis: RedisServer, tmp_path: Path) -> Iterator[Process]:
    stack = Stack(own_redis.url, tmp_path)
    try:
        gateway = stack.gateway()
        stack.worker(**FAST)
        yield gateway
    finally:
        stack.close()


def test_killed_with_its_append_only_file_every_answer_is_whole(
    fleet: Process, own_redis: RedisServer
) -> None:
    streams, right = begin(fleet)
    own_redis.stop(kill=True)
    own_redis.start()
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(fleet)


def test_restarted_without_its_data_readers_get_stream_reset(
    fleet: Process, own_redis: RedisServer
) -> None:
    streams, right = begin(fleet)
    kept = httpx.post(f"{fleet.url}/jobs", json={"body": body("kept", max_tokens=500)}).json()
    with own_redis.client() as client:
        client.config_set("appendonly", "no")
    own_redis.stop(kill=True)
    own_redis.options["appendonly"] = "no"
    own_redis.start()
    join(streams)
    assert {stream.error for stream in streams} == {"stream_reset"}
    check_no_splice(streams, right)
    answers_again(fleet)
    assert httpx.get(f"{fleet.url}/jobs/{kept['id']}").status_code == 404


def test_with_full_memory_running_answers_go_on_and_new_calls_get_503(
    fleet: Process, own_redis: RedisServer
) -> None:
    streams, right = begin(fleet)
    with own_redis.client() as client:
        client.config_set("maxmemory", 1)
        refused = httpx.post(fleet.url + CHAT, json=body("more"), timeout=10)
        assert refused.status_code == 503
        assert "retry-after" in refused.headers
        assert refused.json()["error"]["code"]
        join(streams)
        client.config_set("maxmemory", 0)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(fleet)


def test_with_a_full_disk_answers_pause_and_new_calls_get_503_until_there_is_room(
    fleet: Process, own_redis: RedisServer
) -> None:
    streams, right = begin(fleet)
    own_redis.limit_file_size(1)

    def refused() -> bool:
        try:
            answer = httpx.post(fleet.url + CHAT, json=body("more", max_tokens=1), timeout=2)
        except httpx.ReadTimeout:  # it was queued by the last write, and its answer pauses
            return False
        return answer.status_code == 503 and "retry-after" in answer.headers

    wait_for(refused, "new calls are refused")
    assert httpx.get(f"{fleet.url}/readyz").status_code == 503
    assert httpx.get(f"{fleet.url}/healthz").status_code == 200  # a restart would not help
    own_redis.limit_file_size(None)
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)
    answers_again(fleet)


def test_while_it_stands_still_answers_pause(fleet: Process, own_redis: RedisServer) -> None:
    streams, right = begin(fleet)
    for _ in range(3):
        own_redis.signal(signal.SIGSTOP)
        time.sleep(0.5)
        own_redis.signal(signal.SIGCONT)
        time.sleep(0.1)
    join(streams)
    assert [stream.error for stream in streams] == [""] * STREAMS
    check_no_splice(streams, right)


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
        gateway = stack.gateway()
        stack.worker(**FAST)
        streams, right = begin(gateway)
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

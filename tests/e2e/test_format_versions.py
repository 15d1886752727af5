"""Releases of two format versions and one Redis: the second fleet is refused, the first goes on."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gateway.maintenance.maintenance_tasks import REPAIR
from shared.store import keys
from shared.store.health import FORMAT_VERSION
from tests.harness.client import CHAT, Call, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, free_port
from tests.harness.settings import ROOT
from tests.harness.waiting import DEADLINE_S, wait_for

OTHER_VERSION = FORMAT_VERSION + 1
TOKENS = 400
SLOW = {"sim_step_ms": 20, "sim_step_us_per_seq": 0}
"""A stream of TOKENS lasts longer than the other fleet needs to start and end, on most machines."""
PROGRAMS = ("gateway", "worker", "gateway.maintenance")


@pytest.fixture(autouse=True)
def own_liveness_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def other(redis_url: str, tmp_path: Path) -> Iterator[Stack]:
    """A fleet of another format version; nothing runs in it yet."""
    folder = tmp_path / "other"
    folder.mkdir()
    program = str(ROOT / "tests/harness/stand_ins/other_format.py")
    stack = Stack(redis_url, folder, launcher=(sys.executable, program, str(OTHER_VERSION)))
    yield stack
    stack.close()


@pytest.fixture
def store(redis_server: RedisServer, redis_url: str) -> Iterator[redis.Redis]:
    with redis_server.client() as client:
        yield client


def start_fleet(stack: Stack, store: redis.Redis) -> Process:
    """Start one process of each program; returns the gateway, once calls are answered."""
    gateway = stack.gateway()
    stack.worker(**SLOW)
    stack.maintenance(repair_interval_s=0.5)
    wait_for(lambda: store.hexists(keys.fleet("maintenance"), REPAIR), "maintenance works")
    wait_for(lambda: answers(gateway), "a call is answered")
    return gateway


def answers(gateway: Process) -> bool:
    gateway.check()
    answer = http.post(f"{gateway.url}{CHAT}", json=chat("short", max_tokens=2), timeout=30)
    return answer.status_code == 200


def start_programs(stack: Stack) -> list[Process]:
    ports = {"port": free_port(), "worker_port": free_port()}
    return [stack.start(module, engine="simulated", **ports) for module in PROGRAMS]


def check_refused(process: Process, found: int | str, needed: int) -> None:
    """The process ends with status 2 and one sentence that names the remedies."""
    assert process.popen.wait(DEADLINE_S) == 2, process.log.read_text()
    text = process.log.read_text()
    name = process.name.removeprefix("gateway.")
    [sentence] = [line for line in text.splitlines() if "format" in line]
    assert sentence.startswith(f"flotilla {name}: Redis 127.0.0.1:")
    assert f"holds data of format {found}, this release needs {needed}: let the fleet" in sentence
    assert "then flush that database" in sentence
    assert "FLOTILLA_REDIS_URL" in sentence
    assert "Traceback" not in text


@pytest.mark.parametrize("first", ["this", "other"])
def test_the_fleet_that_came_first_goes_on(
    stack: Stack, other: Stack, store: redis.Redis, first: str
) -> None:
    fleet, second = (stack, other) if first == "this" else (other, stack)
    found, needed = (
        (FORMAT_VERSION, OTHER_VERSION) if first == "this" else (OTHER_VERSION, FORMAT_VERSION)
    )
    gateway = start_fleet(fleet, store)
    stream = Call(
        gateway,
        chat(
            "streamed",
            stream=True,
            max_tokens=TOKENS,
            ignore_eos=True,
            stream_options={"include_usage": True},
        ),
    )
    wait_for(lambda: len(stream.lines) > 5, "the stream has begun")

    for process in start_programs(second):
        check_refused(process, found, needed)

    stream.join(DEADLINE_S)
    assert stream.status == 200
    assert stream.lines[-1] == "data: [DONE]"
    usage = json.loads(stream.lines[-2].removeprefix("data: "))["usage"]
    assert usage["completion_tokens"] == TOKENS
    chunks = [json.loads(line[6:]) for line in stream.lines[:-2] if line.startswith("data: ")]
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"

    store.flushall()
    wait_for(lambda: store.exists(keys.fleet("format")), "the database is marked again")
    wait_for(lambda: answers(gateway), "a call is answered again")
    wait_for(lambda: store.hexists(keys.fleet("maintenance"), REPAIR), "maintenance works again")
    for process in fleet.processes:
        process.check()
    assert store.get(keys.fleet("format")) == str(found).encode()
    check_refused(second.start("gateway", port=free_port()), found, needed)

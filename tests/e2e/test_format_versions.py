"""Releases of two format versions and one Redis: the second fleet is refused, the first goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import msgpack
import pytest
import redis

from gateway.launcher.local_redis import find_server
from gateway.maintenance.maintenance_tasks import REPAIR
from shared.store.redis import keys
from shared.store.redis.format_version import FORMAT_VERSION
from tests.harness.client import CHAT, Call, chat
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer, free_port
from tests.harness.settings import ROOT, Settings, child_environment
from tests.harness.up import REAL, Up, children
from tests.harness.waiting import DEADLINE_S, wait_for

OTHER_VERSION = FORMAT_VERSION + 1
TOKENS = 400
SLOW = {"sim_step_ms": 20, "sim_step_us_per_seq": 0}
"""A stream of TOKENS lasts longer than the other fleet needs to start and end, on most machines."""
PROGRAMS = ("gateway", "worker", "gateway.maintenance")
DATABASES = 2
"""The fleet's, and that of Celery's messages."""


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
    wait_for(lambda: store.hexists(keys.MAINTENANCE_RUNS, REPAIR), "maintenance works")
    wait_for(lambda: answers(gateway), "a call is answered")
    return gateway


def answers(gateway: Process) -> bool:
    gateway.check()
    answer = httpx.post(f"{gateway.url}{CHAT}", json=chat("short", max_tokens=2), timeout=30)
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
    assert answers(gateway)
    store.hdel(keys.MAINTENANCE_RUNS, REPAIR)
    wait_for(lambda: store.hexists(keys.MAINTENANCE_RUNS, REPAIR), "maintenance still works")
    for process in fleet.processes:
        process.check()
    assert store.get(keys.FORMAT) == str(found).encode()


def test_a_running_fleet_survives_flushall_and_owns_the_database_again(
    stack: Stack, other: Stack, store: redis.Redis
) -> None:
    gateway = start_fleet(stack, store)
    store.flushall()
    wait_for(lambda: store.exists(keys.FORMAT), "the database is marked again")
    wait_for(lambda: answers(gateway), "a call is answered again")
    wait_for(lambda: store.hexists(keys.MAINTENANCE_RUNS, REPAIR), "maintenance works again")
    for process in stack.processes:
        process.check()
    for process in start_programs(other):
        check_refused(process, FORMAT_VERSION, OTHER_VERSION)
    assert answers(gateway)


# --- data of a release that wrote no version ---


def write_format_1(store: redis.Redis) -> None:
    """Jobs of a fleet of format 1: one waits, one is leased, both deadlines have passed."""
    queue = "flotilla:{0}:queue:simulated:default"
    pending, leased = (f"job_000{digit * 24}" for digit in "ab")
    store.xgroup_create(queue, "workers", id="0", mkstream=True)
    for job in (leased, pending):
        asked = ["default", "simulated", "default", "simulated", CHAT, "1", "60000", "3", ""]
        record: dict[Any, Any] = {
            "state": "in_progress" if job == leased else "queued",
            "request": msgpack.packb(asked, use_bin_type=False),
            "body": json.dumps(chat("old")),
            "created_us": 1_700_000_000_000_000,
            "deadline_us": 1_700_000_060_000_000,
            "entry": store.xadd(queue, {"job": job}),
        }
        if job == leased:
            lease = ["w-old", "0123456789abcdef", 1, 1, "10000", "1700000001000000"]
            record["lease"] = msgpack.packb(lease, use_bin_type=False)
        store.hset(f"flotilla:{{0}}:job:{job}", mapping=record)
        store.zadd("flotilla:{0}:jobs:default", {job: 1_700_000_000_000_000})
        store.zadd("flotilla:{0}:deadlines", {job: 1_700_000_060_000_000})
    store.xreadgroup("workers", "w-old", {queue: ">"}, count=1)
    store.zadd("flotilla:{0}:waiting:simulated:default", {pending: 1_700_000_000_000_000})
    store.rpush(f"flotilla:{{0}}:log:{leased}", msgpack.packb([1, "text"]))
    store.sadd("flotilla:{0}:pools", "simulated")
    store.xadd("flotilla:{0}:dead", {"what": "job"})
    for shard in range(Settings().shards):
        store.set(f"flotilla:{{{shard}}}:reaped", "1700000001000000 1700000000000000")
    store.sadd("flotilla:{fleet}:workers", "w-old")
    store.hset("flotilla:{fleet}:models", "simulated", json.dumps({"pool": "simulated"}))
    store.rpush("flotilla:{fleet}:scalings:simulated", "{}")


def dump(store: redis.Redis) -> dict[tuple[int, bytes], Any]:
    """All keys of all databases with their values."""
    port = store.connection_pool.connection_kwargs["port"]
    found: dict[tuple[int, bytes], Any] = {}
    for number in range(DATABASES):
        with redis.Redis(port=port, db=number) as database:
            for key in database.scan_iter():
                found[number, key] = value(database, key)
    return found


def value(database: redis.Redis, key: bytes) -> Any:
    """The key's value; not its DUMP, which depends on the order of a hash's fields."""
    match database.type(key):
        case b"string":
            return database.get(key)
        case b"hash":
            return database.hgetall(key)
        case b"list":
            return database.lrange(key, 0, -1)
        case b"set":
            return database.smembers(key)
        case b"zset":
            return database.zrange(key, 0, -1, withscores=True)
        case b"stream":
            groups = [group["name"] for group in database.xinfo_groups(key)]
            pending = [(name, database.xpending(key, name)) for name in groups]
            return database.xrange(key), pending
    raise AssertionError(key)


@pytest.mark.parametrize(
    "command",
    [
        *(["-m", module] for module in PROGRAMS),
        ["-c", "from gateway.cli.main import main; main()", "up"],
    ],
)
def test_data_of_format_1_is_refused_and_left_as_it_is(
    redis_url: str, store: redis.Redis, tmp_path: Path, command: list[str]
) -> None:
    write_format_1(store)
    before = dump(store)
    environment = child_environment(redis_url=redis_url, engine="simulated", port=0)
    ended = subprocess.run(
        [sys.executable, *command],
        env=environment | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert ended.returncode == 2, ended.stderr
    assert f"holds data of format 1, this release needs {FORMAT_VERSION}: " in ended.stderr
    assert len(ended.stderr.splitlines()) == 1
    assert dump(store) == before


@pytest.fixture
def redis_of_up(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis on the data of the `flotilla up` in this folder; runs while that does not."""
    folder = tmp_path / ".flotilla" / "redis"
    folder.mkdir(parents=True)
    server = RedisServer(folder, find_server(os.environ["PATH"]))
    server.start()
    yield server
    server.stop()


def test_up_with_old_data_in_its_folder_ends_with_one_sentence(
    redis_of_up: RedisServer, tmp_path: Path
) -> None:
    with redis_of_up.client() as store:
        write_format_1(store)
        before = dump(store)
    redis_of_up.stop()

    fleet = Up(tmp_path, command=REAL)
    try:
        assert fleet.wait_for_exit() == 1, fleet.text()
        remedy = "delete that folder, or run `flotilla up` in another one; stopping"
        expected = f".flotilla/redis holds data of format 1, this release needs {FORMAT_VERSION}: "
        [sentence] = [line for line in fleet.text().splitlines() if "format" in line]
        assert expected in sentence
        assert sentence.endswith(remedy)
        assert "starting it again" not in fleet.text()
        assert "Traceback" not in fleet.text()
        assert len(fleet.text().splitlines()) == 3  # what starts, the sentence, the end
        assert not (tmp_path / ".flotilla/logs/gateway.log").exists()
        assert children(fleet.process.pid) == []
    finally:
        fleet.process.kill()

    redis_of_up.start()
    with redis_of_up.client() as store:
        assert dump(store) == before

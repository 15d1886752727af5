"""`python -m gateway.maintenance` as a process: its rounds, repairs, signals, and a lost Redis."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis

from gateway.maintenance.broker import broker
from gateway.maintenance.celery_app import CONTENT_TYPE
from gateway.maintenance.maintenance_tasks import AUTOSCALE, REPAIR
from shared.store import keys
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisCluster, RedisServer, fleet_on_one_node
from tests.harness.settings import ROOT, Settings, child_environment
from tests.harness.up import children
from tests.harness.waiting import wait_for

POOL = "simulated"
OFTEN = {"autoscale": "no-such-model=0:1", "autoscale_tick_s": 0.5, "repair_interval_s": 0.5}
"""A task of each kind, on Celery and on a timer, that runs so often that tests can wait for it."""
END_S = 20.0
"""For a process to end; it takes one or two, and ten where Redis hangs."""


@pytest.fixture(autouse=True)
def own_liveness_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))


@pytest.fixture
def fleet(own_redis: RedisServer, tmp_path: Path) -> Iterator[Stack]:
    """Nothing runs in it yet but a Redis that may be killed."""
    stack = Stack(own_redis.url, tmp_path)
    yield stack
    stack.close()


@pytest.fixture
def store(own_redis: RedisServer) -> Iterator[redis.Redis]:
    with own_redis.client() as client:
        yield client


def wait_for_rounds(store: redis.Redis, process: Process) -> None:
    """A task on Celery and one on a timer run once more."""
    store.hdel(keys.fleet("maintenance"), AUTOSCALE, REPAIR)
    wait_until_done(store, process, AUTOSCALE)
    wait_until_done(store, process, REPAIR)


def wait_until_done(store: redis.Redis, process: Process, name: str) -> None:
    """The task is done for the first time."""

    def done() -> bool:
        assert process.popen.poll() is None, f"it ended:\n{process.log.read_text()[-3000:]}"
        return bool(store.hexists(keys.fleet("maintenance"), name))

    wait_for(done, f"{name} is done")


def end(process: Process, number: int = signal.SIGTERM) -> str:
    """What it wrote in its life."""
    process.popen.send_signal(number)
    assert process.popen.wait(END_S) == 0, process.log.read_text()[-3000:]
    return process.log.read_text()


def liveness_files(folder: Path) -> list[Path]:
    return list(folder.glob("flotilla-maintenance-*"))


def check(stack: Stack) -> subprocess.CompletedProcess[str]:
    """The health check, as a container runs it."""
    settings = {"redis_url": stack.redis_url, **OFTEN}
    return subprocess.run(
        [sys.executable, "-m", "gateway.maintenance", "--check"],
        env=child_environment(**settings),
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )


def test_it_runs_its_tasks_until_a_signal_and_writes_nothing_but_its_liveness_file(
    fleet: Stack,
    store: redis.Redis,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that it can run on a read-only file system."""
    workplace = tmp_path / "workplace"
    workplace.mkdir()
    monkeypatch.chdir(workplace)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    assert check(fleet).returncode == 1
    maintenance = fleet.maintenance(**OFTEN)
    wait_until_done(store, maintenance, REPAIR)
    wait_for_rounds(store, maintenance)
    wait_for(lambda: len(liveness_files(tmp_path)) == 1, "its file is there")
    assert check(fleet).returncode == 0
    before = time.monotonic()
    output = end(maintenance)
    assert time.monotonic() - before < END_S / 2
    assert "Traceback" not in output
    assert "error" not in output
    assert list(workplace.iterdir()) == []
    assert liveness_files(tmp_path) == []


def test_on_a_cluster_the_messages_of_its_tasks_stay_in_its_memory(tmp_path: Path) -> None:
    cluster = fleet_on_one_node(tmp_path / "cluster")
    with contextlib.closing(cluster), contextlib.closing(Stack(cluster.url, tmp_path)) as fleet:
        cluster.start()
        process = fleet.maintenance(**OFTEN)
        with cluster.masters[0].client() as store:
            wait_for_rounds(store, process)
            others = [name for name in store.scan_iter() if not name.startswith(b"flotilla:")]
            assert others == []
        assert cluster.masters[1].client().dbsize() == 0
        process.terminate()
        wait_for(lambda: process.popen.poll() == 0, "it ends", END_S)


def test_it_is_alive_and_says_what_fails_while_one_of_several_masters_is_away(
    tmp_path: Path,
) -> None:
    cluster = RedisCluster(tmp_path / "cluster", 3)
    with contextlib.closing(cluster), contextlib.closing(Stack(cluster.url, tmp_path)) as fleet:
        cluster.start()
        settings = {"shards": 3, **OFTEN}
        process = fleet.maintenance(**settings)
        wait_for(lambda: liveness_files(tmp_path), "its file is there")
        assert check(fleet).returncode == 0
        with cluster.client() as client:
            own = cluster.master_of(client.keyslot(keys.fleet("maintenance")))
            other = next(node for node in cluster.masters if node is not own)
            other.kill()
            wait_for(lambda: "repair: failed" in process.log.read_text(), "it says so")
            process.terminate()
            wait_for(lambda: process.popen.poll() is not None, "it ends", END_S)
            client.delete(keys.fleet("maintenance"))
        assert liveness_files(tmp_path) == []
        again = fleet.maintenance(**settings)
        wait_for(lambda: liveness_files(tmp_path), "the next one is alive, too", 60)
        assert check(fleet).returncode == 0
        other.start()
        with own.client() as store:
            wait_for_rounds(store, again)


def test_it_outlives_its_redis(fleet: Stack, own_redis: RedisServer, store: redis.Redis) -> None:
    own_redis.stop()
    maintenance = fleet.maintenance(**OFTEN)  # it waits for Redis at its start too
    wait_for(lambda: "Trying again" in maintenance.log.read_text(), "it has noticed")
    own_redis.start()
    wait_for_rounds(store, maintenance)
    for _ in range(3):  # Celery has more than one way not to come back
        own_redis.stop(kill=True)
        own_redis.start()
        wait_for_rounds(store, maintenance)
    store.flushall()  # its own database too
    wait_for_rounds(store, maintenance)
    end(maintenance, signal.SIGINT)


def test_a_signal_ends_it_while_redis_hangs(
    fleet: Stack, own_redis: RedisServer, store: redis.Redis
) -> None:
    maintenance = fleet.maintenance(**OFTEN)
    wait_for_rounds(store, maintenance)
    assert own_redis._process is not None
    os.kill(own_redis._process.pid, signal.SIGSTOP)
    try:
        end(maintenance)
    finally:
        os.kill(own_redis._process.pid, signal.SIGCONT)


class _Evil:
    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self._path),)


def message(body: bytes, content_type: str, task: str) -> str:
    """As Celery puts one into a list."""
    name = str(uuid.uuid4())
    return json.dumps(
        {
            "body": base64.b64encode(body).decode(),
            "content-encoding": "binary" if "pickle" in content_type else "utf-8",
            "content-type": content_type,
            "headers": {"lang": "py", "task": task, "id": name, "root_id": name},
            "properties": {
                "correlation_id": name,
                "delivery_mode": 2,
                "delivery_info": {"exchange": "", "routing_key": "maintenance"},
                "priority": 0,
                "body_encoding": "base64",
                "delivery_tag": name,
            },
        }
    )


def test_malformed_messages_in_its_database_stop_nothing(
    fleet: Stack, own_redis: RedisServer, store: redis.Redis, tmp_path: Path
) -> None:
    maintenance = fleet.maintenance(**OFTEN)
    wait_for_rounds(store, maintenance)
    trap = tmp_path / "code was run"
    as_json, as_pickle = CONTENT_TYPE, "application/x-python-serialize"
    rubbish = [
        message(pickle.dumps(_Evil(trap)), as_pickle, REPAIR),
        message(pickle.dumps(_Evil(trap)), as_pickle, "no.such.task"),
        message(b"[[], {}, {}]", "application/json", REPAIR),
        message(b"[[], {}, {}]", as_json, "no.such.task"),
        message(b"not json", as_json, REPAIR),
        message(b"{}", as_json, REPAIR),
        message(b"null", as_json, REPAIR),
        message(b'[["too", "many"], {"arguments": 1}, {}]', as_json, REPAIR),
        "not json at all",
        '{"no": "message"}',
        "[]",
    ]
    queue = f"{broker(Settings(redis_url=own_redis.url)).prefix}maintenance"
    unacked = queue.removesuffix("maintenance") + "unacked"
    with redis.Redis(port=own_redis.port, db=1) as own:
        for each in rubbish:
            own.rpush(queue, each)
            wait_for(lambda: own.llen(queue) == 0, f"it is taken: {each}")
        wait_for(lambda: own.hlen(unacked) == 0, "nothing is kept for later")
    wait_for_rounds(store, maintenance)
    output = end(maintenance)
    assert "Refusing to deserialize" in output
    assert not trap.exists()


def child_of(process: Process) -> int:
    """The process id of its only child."""
    (child,) = children(process.popen.pid)
    return child


def test_celery_is_restarted_and_ends_with_its_parent(fleet: Stack, store: redis.Redis) -> None:
    maintenance = fleet.maintenance(**OFTEN)
    wait_for_rounds(store, maintenance)
    os.kill(child_of(maintenance), signal.SIGKILL)
    wait_for_rounds(store, maintenance)
    assert "Celery ended with status -9; restarting it" in maintenance.log.read_text()
    celery = child_of(maintenance)
    maintenance.kill()
    wait_for(lambda: not Path(f"/proc/{celery}/exe").exists(), "it has ended")


def test_a_redis_with_one_database_only(own_redis: RedisServer, tmp_path: Path) -> None:
    """As a cluster and many managed ones; the error names the setting that helps."""
    stack = Stack(own_redis.url.replace("/0", "/15"), tmp_path)
    try:
        refused = stack.maintenance(**OFTEN)
        assert refused.popen.wait(END_S) == 2
        assert "FLOTILLA_MAINTENANCE_REDIS_URL" in refused.log.read_text()
        works = stack.maintenance(maintenance_redis_url=stack.redis_url, **OFTEN)
        with redis.Redis(port=own_redis.port, db=15) as store:
            wait_for_rounds(store, works)
        end(works)
    finally:
        stack.close()

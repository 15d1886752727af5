"""One tenant fills Redis as fast as it can: it is refused, and others are served all the time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Event
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

GREEDY, MODEST, OPERATOR = bearer("key-a"), bearer("key-b"), bearer("key-o")
KEYS = {"api_keys": "greedy:key-a,modest:key-b", "admin_keys": "ops:key-o"}
MB = 1 << 20
ROOM = 16 * MB
"""Beside what Redis uses when nothing is stored, and 20 MB that stay free for buffers."""
JOB = chat(max_tokens=4, user="u" * 3800)
METADATA = {f"name {n}": "v" * 512 for n in range(16)}
THREADS, REFUSALS, CALLS = 4, 100, 40


@pytest.fixture
def full_redis(own_redis: RedisServer) -> Iterator[RedisServer]:
    """One with little memory."""
    with own_redis.client() as redis:
        info: Any = redis.info("memory")
        redis.config_set("maxmemory", int(info["used_memory"]) + 20 * MB + ROOM)
        yield own_redis
        assert "errorstat_OOM" not in redis.info("errorstats")


def kept_bytes(http: httpx.Client, gateway: Process, tenant: str) -> int:
    rows = http.get(f"{gateway.url}/admin/tenants", headers=OPERATOR).json()["data"]
    return int(next(row["bytes_kept"] for row in rows if row["tenant"] == tenant))


class Filling:
    """Threads that submit jobs as fast as they are answered, refused or not."""

    def __init__(self, http: httpx.Client, gateway: Process) -> None:
        self._http, self._url = http, f"{gateway.url}/jobs"
        self._stop = Event()
        self.answers = Counter[str]()

    def refused(self) -> int:
        self._check()
        return self.answers.total() - self.answers["accepted"]

    def _check(self) -> None:
        assert not any(each.done() for each in self._threads), [e.result() for e in self._threads]

    def _submit(self) -> None:
        body = {"endpoint": CHAT, "body": JOB, "metadata": METADATA}
        while not self._stop.is_set():
            answer = self._http.post(self._url, json=body, headers=GREEDY)
            if answer.status_code == 202:
                self.answers["accepted"] += 1
            else:
                assert "retry-after" in answer.headers
                assert "FLOTILLA_" in answer.json()["error"]["message"]
                self.answers[answer.json()["error"]["code"]] += 1

    def __enter__(self) -> Filling:
        self._pool = ThreadPoolExecutor(THREADS)
        self._threads = [self._pool.submit(self._submit) for _ in range(THREADS)]
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._pool.shutdown()


def test_who_fills_redis_is_refused_and_others_are_served(
    full_redis: RedisServer, tmp_path: Path
) -> None:
    with (
        closing(Stack(full_redis.url, tmp_path)) as stack,
        httpx.Client(timeout=60, limits=httpx.Limits(keepalive_expiry=None)) as http,
    ):
        gateway = stack.gateway(**KEYS)
        stack.worker(sim_step_ms=1, sim_max_num_seqs=64)

        def serve_the_other() -> None:
            body = chat(max_tokens=2)
            answer = http.post(gateway.url + CHAT, json=body, headers=MODEST)
            assert answer.status_code == 200, answer.text
            wanted = {"endpoint": CHAT, "body": body}
            answer = http.post(f"{gateway.url}/jobs", json=wanted, headers=MODEST)
            assert answer.status_code == 202, answer.text

        with Filling(http, gateway) as filling:
            wait_for(lambda: filling.refused() >= REFUSALS, "Redis is full", 120)
            before = filling.refused()
            for _ in range(CALLS):
                serve_the_other()
            wait_for(lambda: filling.refused() >= before + REFUSALS, "it is refused again")
        assert filling.answers.keys() == {"accepted", "quota_exceeded", "redis_memory_full"}
        assert filling.answers["accepted"] * 12_000 < kept_bytes(http, gateway, "greedy")
        for _ in range(CALLS):
            serve_the_other()

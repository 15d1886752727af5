"""A random model of a fleet: clients of every kind, while its processes are killed, stopped,
drained, restarted and cut off from Redis.

What happens is drawn from a seed, and waits for the progress of the clients, not for the clock. The
right answer to each request is that of an engine that nothing disturbs (load_tests/oracle).
"""

from __future__ import annotations

import asyncio
import random
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis

from load_tests.clients.client_group import ClientGroup
from load_tests.clients.gateways import Gateways
from load_tests.harness.leftovers import count_leftovers
from load_tests.oracle.differences import differences
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import MODES, Mode
from load_tests.oracle.request_source import RequestSource
from tests.harness.client import http, job
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisCluster, RedisServer, embedded_binary, free_port
from tests.harness.waiting import eventually, wait_for

GATEWAYS, CLIENTS = 2, 10
STEPS_MS = (15, 45, 45)
"""How fast each worker is: the first is ahead of those that take its jobs over."""
EVENTS = 10
"""Things that happen in one run; each kind of them once, then any."""
SETTINGS: Mapping[str, Any] = {
    "max_attempts": 20,
    "disconnect_grace_s": 1.0,
    "result_ttl_s": 600.0,
    "stream_ttl_s": 600.0,
}
ENGINE = {"sim_step_us_per_seq": 0, "sim_max_num_seqs": 64}
PATIENCE_S = 120.0
"""Of a client."""
ALL_MODES = {**MODES, Mode.RESUMED: 2, Mode.LEFT: 1, Mode.CANCELLED: 1}
IN_TIME = {"x-flotilla-run-deadline": "0.6"}
"""Headers of calls of which some take longer."""
HURRIED = "in a hurry"
"""In the tags of such calls."""
FINAL = {"completed", "failed", "cancelled", "expired"}


class Redis:
    """One server or a cluster of masters, by whatever program."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.shards = 1
        if kind == "cluster":
            cluster = RedisCluster(folder, 2, node_timeout_ms=60_000)
            cluster.start()
            self.url, self.nodes, self.shards = cluster.url, cluster.masters, 2
        else:
            server = RedisServer(folder, embedded_binary() if kind == "embedded" else None)
            server.start()
            self.url, self.nodes = server.url, [server]

    def client(self) -> Any:
        """A client that sees all keys."""
        port = self.nodes[0].port
        return redis.RedisCluster("127.0.0.1", port) if self.shards > 1 else redis.Redis(port=port)

    def cut_connections(self) -> None:
        for node in self.nodes:
            with node.client() as client:
                client.client_kill_filter(_type="normal", skipme=True)
                client.client_kill_filter(_type="pubsub")


class Fleet:
    """Gateways, workers and maintenance, and what may happen to them."""

    def __init__(self, stack: Stack, store: Redis, seed: int) -> None:
        self._stack, self._store, self._rng = stack, store, random.Random(seed)
        self._settings = {**SETTINGS, "shards": store.shards}
        self._drained: list[Process] = []
        self._n_started, self._names = 0, dict[str, str]()
        self._ports = [free_port() for _ in range(GATEWAYS)]
        self.urls = [f"http://127.0.0.1:{port}" for port in self._ports]
        self._gateways = [self._start_gateway(n) for n in range(GATEWAYS)]
        self._workers = [self._start_worker(n) for n in range(len(STEPS_MS))]
        self._maintenance = stack.maintenance(**self._settings)
        for worker in self._workers:
            wait_for(worker.ready, "a worker is ready")

    @property
    def gateway(self) -> Process:
        """One of them."""
        return self._gateways[0]

    def _start_gateway(self, n: int) -> Process:
        process = self._stack.start("gateway", port=self._ports[n], **self._settings)
        process.url = self.urls[n]
        wait_for(process.ready, "a gateway is ready")
        return process

    def _start_worker(self, n: int) -> Process:
        self._n_started += 1
        name = f"worker-{self._n_started}"
        engine = {"worker_id": name, "sim_step_ms": STEPS_MS[n], **ENGINE}
        worker = self._stack.worker(wait=False, **engine, **self._settings)
        self._names[worker.url] = name
        return worker

    def _running(self) -> dict[str, str]:
        """The worker of each job that is in progress."""
        wanted = {"limit": 100, "state": "in_progress"}

        def answer() -> httpx.Response | None:
            found = http.get(f"{self.gateway.url}/jobs", params=wanted)
            # Another node of the cluster than the clients have waited for may not be back yet.
            return None if found.status_code == 503 else found

        listed = wait_for(answer, "jobs are listed").raise_for_status().json()["data"]
        return {each["id"]: each["attempts"][-1]["worker"] for each in listed}

    def _running_at(self, worker: Process) -> set[str]:
        """The jobs that are in progress there."""
        name = self._names[worker.url]
        return {job_id for job_id, at in self._running().items() if at == name}

    def _any(self) -> int:
        """The number of any worker."""
        return self._rng.randrange(len(self._workers))

    def _busy(self, n: int) -> Process:
        """The n-th worker, when it has jobs."""
        wait_for(lambda: self._running_at(self._workers[n]), "it has jobs")
        return self._workers[n]

    def _stop(self, n: int) -> Process:
        """Stop the n-th worker while it has jobs."""
        while True:
            worker = self._busy(n)
            worker.stop(signal.SIGSTOP)
            if self._running_at(worker):
                return worker
            worker.stop(signal.SIGCONT)

    def kill_worker(self) -> None:
        n = self._any()
        self._stop(n).kill()
        self._workers[n] = self._start_worker(n)

    def drain_worker(self) -> None:
        n = self._any()
        self._drained.append(self._busy(n))
        self._drained[-1].terminate()
        self._workers[n] = self._start_worker(n)

    def stop_worker(self) -> None:
        """Until others run its jobs: then it goes on with them, too."""
        worker = self._stop(0)
        held = self._running_at(worker)

        def others_do() -> bool:
            left = held & self._running().keys()
            return not left or bool(left - self._running_at(worker))

        wait_for(others_do, "a worker that stands still loses its jobs")
        worker.stop(signal.SIGCONT)

    def pause_worker(self) -> None:
        """Shorter than that."""
        worker = self._stop(self._any())
        time.sleep(self._rng.uniform(0.1, 1.0))
        worker.stop(signal.SIGCONT)

    def kill_gateway(self) -> None:
        n = self._rng.randrange(GATEWAYS)
        self._gateways[n].kill()
        self._gateways[n] = self._start_gateway(n)

    def kill_maintenance(self) -> None:
        self._maintenance.kill()
        self._maintenance = self._stack.maintenance(**self._settings)

    def cut_connections(self) -> None:
        self._store.cut_connections()

    def restart_redis(self) -> None:
        node = self._rng.choice(self._store.nodes)
        node.stop(kill=self._rng.random() < 0.5)
        node.start()

    def plan(self) -> Iterator[Callable[[], None]]:
        """What happens in this run."""
        kinds = [
            self.kill_worker,
            self.drain_worker,
            self.stop_worker,
            self.pause_worker,
            self.kill_gateway,
            self.kill_maintenance,
            self.cut_connections,
            self.restart_redis,
        ]
        yield from self._rng.sample(kinds, len(kinds))
        yield from self._rng.choices(kinds, k=EVENTS - len(kinds))

    def check(self) -> None:
        """No process has ended by itself, and drained workers have ended well."""
        for process in (*self._gateways, *self._workers, self._maintenance):
            process.check()
        assert [worker.popen.wait(60) for worker in self._drained] == [0] * len(self._drained)


async def play(fleet: Fleet, seed: int) -> list[Observation]:
    """What all clients have seen in one run."""
    seen: list[Observation] = []
    source = RequestSource()
    await source.start()

    def clients(headers: Mapping[str, str]) -> ClientGroup:
        gateways = Gateways(fleet.urls, timeout_s=PATIENCE_S, attempts=1000, headers=headers)
        return ClientGroup(gateways, seen.append, timeout_s=PATIENCE_S)

    usual, hurried = clients({}), clients(IN_TIME)

    async def draw(rng: random.Random, tag: str) -> Any:
        return await source.draw(rng, tag, ALL_MODES)

    async def draw_call(rng: random.Random, tag: str) -> Any:
        return await source.draw(rng, f"{tag} {HURRIED}", {Mode.CALL: 1})

    try:
        usual.start(draw, clients=CLIENTS, seed=seed)
        hurried.start(draw_call, clients=2, seed=seed)
        for happens in fleet.plan():
            enough = len(seen) + CLIENTS

            async def have_gone_on(n: int = enough) -> bool:
                usual.check()
                return len(seen) >= n

            await eventually(have_gone_on, "the clients go on", PATIENCE_S)
            await asyncio.to_thread(happens)
        await usual.stop()
        await hurried.stop()
    finally:
        await usual.close()
        await hurried.close()
        source.close()
    return seen


def errors_of(seen: Observation, record: dict[str, Any] | None) -> list[str]:
    """What is wrong with an answer and its job's record."""
    errors = differences(seen).in_words()
    mode, hurried = seen.request.mode, HURRIED in seen.request.tag
    leaves = mode is Mode.LEFT or mode is Mode.CANCELLED
    late = hurried and seen.code == "run_deadline_exceeded"
    ended = mode is Mode.CANCELLED and seen.code == "completed"
    if not (seen.complete or late or ended or (leaves and seen.end is End.LEFT)):
        errors.append(f"its client got no whole answer: {seen.end} {seen.code}")
    if record is None:
        return errors if leaves else [*errors, "its client got no id"]
    if seen.complete and seen.expected.answer.status == 200 and record["state"] != "completed":
        errors.append(f"its client has the whole answer, but it is {record['state']}")
    if mode is Mode.CANCELLED and seen.end is End.LEFT and record["state"] != "cancelled":
        errors.append(f"it was cancelled, but is {record['state']}")
    right, whole = seen.expected.texts, record["state"] == "completed"
    texts = {choice["index"]: choice["text"] for choice in record.get("choices") or ()}
    if not all(right[index].startswith(text) for index, text in texts.items()):
        errors.append(f"the text in its record is wrong: {texts}")
    if whole and texts != right:
        errors.append(f"the text in its record is not whole: {texts}")
    if whole and record["usage"]["completion_tokens"] != seen.expected.completion_tokens:
        errors.append(f"its usage is {record['usage']}")
    for before, after in pairwise(record["attempts"]):
        if before["ended_at"] is None or after["started_at"] < before["ended_at"]:
            errors.append(f"two workers held it at a time: {before}, {after}")
    return errors


def ended_job(fleet: Fleet, job_id: str) -> dict[str, Any]:
    """The record of a job, when it has ended."""

    def ended() -> dict[str, Any]:
        found = job(fleet.gateway, job_id)
        return found if found.get("state") in FINAL else {}

    return wait_for(ended, f"{job_id} ends")


@pytest.fixture(params=["redis", "embedded", "cluster"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Redis]:
    """The system's Redis, the embedded server, or a cluster of two masters."""
    store = Redis(request.param, tmp_path)
    yield store
    for node in store.nodes:
        node.stop()


@pytest.fixture
def stack(store: Redis, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    stack = Stack(store.url, tmp_path_factory.mktemp("fleet"))
    yield stack
    stack.close()


@pytest.mark.seeds(1)
async def test_every_answer_is_right_whatever_happens(
    stack: Stack, store: Redis, seed: int
) -> None:
    fleet = await asyncio.to_thread(Fleet, stack, store, seed)
    seen = await play(fleet, seed)
    fleet.check()
    wrong, lost = [], 0
    for each in seen:
        record = ended_job(fleet, each.job_id) if each.job_id else None
        attempts = record["attempts"] if record else ()
        lost += any(attempt["outcome"] == "worker_lost" for attempt in attempts)
        if errors := errors_of(each, record):
            wrong.append(f"{each.job_id} {each.request.tag} ({each.request.mode}): {errors}")
    assert not wrong, "\n".join(wrong)
    assert {each.request.mode for each in seen} == set(Mode)
    assert lost, "answers were continued"
    with store.client() as client:
        wait_for(lambda: not any(count_leftovers(client).values()), "nothing is left over")

"""Runs a fleet of one size on this machine and measures what each part costs.

Redis tells the time of each script call (SLOWLOG); the kernel the CPU time of each process; the
client how old each token was when it came. `measure_node` measures a node of a cluster.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import mean
from typing import Any

from load_tests.capacity.simulation import FEATURES, Size
from load_tests.clients.load_client import LoadSpec
from load_tests.harness import machine
from load_tests.harness.errors import RunError
from load_tests.harness.spread import percentile
from load_tests.systems.engine import CHAT_PATH, EngineTiming, request_body
from load_tests.systems.system import System
from shared.job.states import WorkerState
from shared.store.redis import keys
from tests.harness.fleet import Stack
from tests.harness.processes import Process, python_command
from tests.harness.servers import RedisCluster
from tests.harness.waiting import wait_for

_STAMPED = "load_tests.capacity.stamped"
_READY = json.dumps(WorkerState.READY).encode()
_LEAST_WARM_S = 2.0
SLOTS = 64
_QUANTILES = 20
_SIZES, _FIRST_MESSAGE = 7, 14
"""Where SLOWLOG's arguments of `emit` have the lengths of its frames, and the first message."""
_SHORTEST_US = 5
"""Redis' log has the commands inside scripts, too; nearly all of them are shorter than this."""


class _Fleet(System):
    """Redis, gateways, and one process with all workers."""

    name = "capacity"

    def __init__(self, processes: Stack, size: Size) -> None:
        super().__init__(processes, EngineTiming(size.step_ms, 0, SLOTS))
        self._size = size

    def start(self) -> None:
        """Start the processes, and count the `connections` to Redis of a worker and a gateway."""
        redis = self.start_redis()
        self._start_workers(redis.client(), redis_url=redis.socket_url)
        of_workers, size = self._connected(), self._size
        self._start_gateways(redis_url=redis.socket_url)
        of_gateways = self._connected() - of_workers
        self.connections = {
            "worker": of_workers / size.workers,
            "gateway": of_gateways / size.gateways,
        }

    def start_cluster(self, masters: int) -> list[Process]:
        """Start the processes on a cluster without replicas; returns its nodes."""
        cluster = RedisCluster(self.folder / "cluster", masters)
        self.stack.afterwards.callback(cluster.close)
        cluster.start()
        settings = {"redis_url": cluster.url, "shards": masters}
        self._start_workers(cluster.client(), **settings)
        self._start_gateways(**settings)
        return [node.process for node in cluster.nodes]

    def _start_workers(self, redis: Any, **settings: Any) -> None:
        settings |= {"worker_port": 0, "log_level": "warning"}
        host = self.stack.start(_STAMPED, str(self._size.workers), name="workers", **settings)
        names = [keys.worker(f"w-{n}") for n in range(self._size.workers)]
        serve = lambda: all(redis.hget(name, "state") == _READY for name in names)  # noqa: E731
        wait_for(serve, "the workers serve", processes=[host])

    def _start_gateways(self, **settings: Any) -> None:
        settings |= {"log_level": "warning", "access_log": False}
        for _ in range(self._size.gateways):
            self.start_gateway(**settings)

    def _connected(self) -> float:
        with self.redis[0].client() as client:
            clients: Any = client.info("clients")
        return float(clients["connected_clients"] - 1)


def measure(processes: Stack, size: Size, seconds: float) -> dict[str, Any]:
    """Run a fleet of this size; return what it cost in `seconds`, ready for JSON.

    Raises RunError if an answer is wrong.
    """
    fleet = _Fleet(processes, size)
    fleet.start()
    redis: Any = fleet.redis[0].client()
    with _loaded(fleet.ports, size, seconds) as popen:
        every = [*fleet.processes, Process("client", "", popen, Path())]
        redis.config_set("slowlog-max-len", 1 << 20)
        redis.config_set("slowlog-log-slower-than", _SHORTEST_US)
        redis.execute_command("SLOWLOG", "RESET")
        ticks, began, before = machine.cpu_ticks(), time.monotonic(), _spent(every)
        time.sleep(seconds)
        ended, after = time.monotonic(), _spent(every)
        redis.config_set("slowlog-log-slower-than", -1)
        stolen = machine.stolen_share(ticks, machine.cpu_ticks())
        answer = _answer(popen)
    log = redis.execute_command("SLOWLOG", "GET", -1)
    processes.close()
    ages = [age for at, age in answer if began <= at < ended]
    return {
        "size": asdict(size), "seconds": ended - began, "stolen": stolen,
        "requests": len(ages) / (size.tokens - 1), "connections": fleet.connections,
        "cpu_s": {part: after[part] - before[part] for part in FEATURES},
        "ages_us": {f"p{share:.0f}": percentile(ages, share / 100) for share in (50, 99)},
        **summarize(log),
    }  # fmt: skip


def measure_node(processes: Stack, size: Size, masters: int, seconds: float) -> float:
    """Run a fleet of this size on a cluster; return the CPU microseconds per token of the node that
    spends most. The nodes have half of the CPUs to themselves, as they have machines of their own.

    Raises RunError if an answer is wrong.
    """
    cpus = sorted(os.sched_getaffinity(0))
    own = cpus[: max(1, len(cpus) // 2)]
    try:
        os.sched_setaffinity(0, cpus[len(own) :] or own)  # of the processes that are started, too
        fleet = _Fleet(processes, size)
        nodes = fleet.start_cluster(masters)
        for n, node in enumerate(nodes):
            os.sched_setaffinity(node.popen.pid, {own[n % len(own)]})
        with _loaded(fleet.ports, size, seconds) as popen:
            began, before = time.monotonic(), [node.cpu_s() for node in nodes]
            time.sleep(seconds)
            ended, after = time.monotonic(), [node.cpu_s() for node in nodes]
            answer = _answer(popen)
        processes.close()
    finally:
        os.sched_setaffinity(0, cpus)
    tokens = sum(began <= at < ended for at, _ in answer)
    return 1e6 * max(b - a for a, b in zip(before, after, strict=True)) / tokens


@contextlib.contextmanager
def _loaded(ports: Sequence[int], size: Size, seconds: float) -> Iterator[subprocess.Popen[bytes]]:
    """The client, once it has warmed the fleet up; it ends `seconds` later.

    Its streams begin one after the other during the time of an answer, so answers end evenly later.
    """
    warm_s = max(_LEAST_WARM_S, size.tokens * size.step_ms / 1e3)
    spec = LoadSpec(
        tuple(ports), json.dumps(request_body(tokens=size.tokens, stream=True)), CHAT_PATH,
        connections=size.streams, requests=1 << 30, ramp_s=warm_s / max(1, size.streams),
        tokens=size.tokens, events=size.tokens + 2, timeout_s=warm_s + seconds + 0.5,
    )  # fmt: skip
    with subprocess.Popen(
        python_command(_STAMPED), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as popen:
        assert popen.stdin is not None
        assert popen.stdout is not None
        popen.stdin.write(json.dumps(asdict(spec)).encode() + b"\n")
        popen.stdin.close()
        popen.stdout.readline()
        time.sleep(warm_s)
        yield popen


def _answer(client: subprocess.Popen[bytes]) -> Iterable[tuple[float, float]]:
    """For each token but an answer's first one, when it came, in seconds, and how old it was, in
    microseconds. Raises RunError."""
    assert client.stdout is not None
    answer = json.loads(client.stdout.read())
    if problems := [each for each in answer["problems"] if "in time" not in each]:
        raise RunError("; ".join(problems))
    return list(zip(answer["ages"][::2], answer["ages"][1::2], strict=True))


def _spent(processes: Sequence[Process]) -> dict[str, float]:
    """Return CPU seconds by name."""
    cpu_s: defaultdict[str, float] = defaultdict(float)
    for each in processes:
        cpu_s[each.name] += each.cpu_s()
    return cpu_s


def summarize(log: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return what Redis did, by SLOWLOG's entries: id, time, microseconds, arguments, ...

    `scripts`: their times by name, batch size (frames of `emit`, rounded up to a power of 2; else
    1) and messages.
    """
    times: defaultdict[tuple[str, int, int], list[int]] = defaultdict(list)
    steps = all_frames = messages = 0
    for _, _, us, arguments, *_ in log:
        if arguments[0] != b"FCALL":
            continue
        name, frames, n_messages = arguments[1].decode().split("_", 2)[2], 1, 0
        if name == "emit" and (packed := arguments[_SIZES]):  # a msgpack array
            frames = int.from_bytes(packed[1:3], "big") if packed[0] == 0xDC else packed[0] & 0xF
            steps, all_frames = steps + 1, all_frames + frames
            n_messages = (len(arguments) - _FIRST_MESSAGE) // 2
            messages += n_messages
        times[name, 1 << (frames - 1).bit_length(), n_messages].append(us)
    scripts = [
        {
            "script": name, "batch": batch, "messages": n_messages, "calls": len(each),
            "mean_us": mean(each),
            "quantiles_us": [percentile(each, (n + 0.5) / _QUANTILES) for n in range(_QUANTILES)],
        }
        for (name, batch, n_messages), each in sorted(times.items())
    ]  # fmt: skip
    return {"steps": steps, "frames": all_frames, "messages": messages, "scripts": scripts}

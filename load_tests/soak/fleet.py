"""The fleet of a soak test, and everything that can be counted in it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

from load_tests.harness.processes import Processes, Role, answers, python, tree, wait_for
from load_tests.systems.engine import EngineTiming
from load_tests.systems.system import System, free_port
from shared.protocol import keys

TENANTS = {"red": "key-red", "green": "key-green", "blue": "key-blue"}
_N_WORKERS = 2
_LEASE_S = 5.0


class SoakFleet(System):
    """A gateway, two workers, a durable Redis; several tenants; ended jobs are kept briefly."""

    name = "soak"

    def __init__(self, processes: Processes, timing: EngineTiming, kept_s: float) -> None:
        super().__init__(processes, timing)
        self._kept_s = kept_s
        self._worker_ports: list[int] = []

    def start(self) -> None:
        redis_url = self.start_redis().url
        fleet = {"redis_url": redis_url, "lease_s": _LEASE_S}
        for n in range(_N_WORKERS):
            port = free_port()
            self._start("worker", f"worker {n + 1}", "engine", port, worker_port=port, **fleet)
            self._worker_ports.append(port)
        port = free_port()
        self._start(
            "gateway",
            "gateway",
            "front",
            port,
            port=port,
            api_keys=",".join(f"{tenant}:{key}" for tenant, key in TENANTS.items()),
            stream_ttl_s=self._kept_s,
            result_ttl_s=self._kept_s,
            **fleet,
        )
        self.ports = [port]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.ports[0]}"

    def figures(self) -> dict[str, float]:
        """What may not grow. Names end with the unit; counts have none."""
        found = {}
        for process in self.processes:
            found[f"{process.label} RSS bytes"] = float(process.memory().rss)
            found[f"{process.label} open files"] = float(sum(map(_open_files, _pids(process))))
        client = self.redis[0].client
        found["Redis used_memory bytes"] = float(client.info("memory")["used_memory"])
        found["Redis keys"] = float(client.dbsize())
        return found | self.work()

    def work(self) -> dict[str, float]:
        """What is there because of jobs: nothing, some time after the last one."""
        client: Any = self.redis[0].client
        base = keys.base(0)
        found = {
            f"{word} keys": float(sum(1 for _ in client.scan_iter(f"{base}{word}:*", count=1000)))
            for word in (keys.JOB, keys.LOG)
        }
        indices = [base + keys.EXPIRING, *(keys.jobs(0, tenant) for tenant in TENANTS)]
        found["index entries"] = float(sum(map(client.zcard, indices)))
        gateway = _metrics(self.ports[0])
        found["open streams"] = _metric(gateway, "flotilla_open_streams")
        found["unfinished jobs"] = _metric(gateway, "flotilla_jobs")
        workers = [_metrics(port) for port in self._worker_ports]
        found["busy slots"] = sum(
            _metric(text, "flotilla_worker_slots", 'use="busy"') for text in workers
        )
        return found

    def _start(self, module: str, label: str, role: Role, at: int, **settings: Any) -> None:
        environment = self._timing.environment(**settings)
        process = self._processes.start(label, role, python(module), environment)
        self.processes.append(process)
        wait_for(lambda: answers(at, "/readyz"), f"the {label} is ready", [process])


def _pids(process: Any) -> Iterable[int]:
    return tree(process.popen.pid)


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


def _metrics(port: int) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        key = next(iter(TENANTS.values()))
        connection.request("GET", "/metrics", headers={"authorization": f"Bearer {key}"})
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def _metric(text: str, name: str, label: str = "") -> float:
    """The sum of a metric's samples that have this label."""
    total = 0.0
    for line in text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and label in sample:
            total += float(value)
    return total

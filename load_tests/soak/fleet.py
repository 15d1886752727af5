"""The fleet of a soak test, and the figures that are sampled from it."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from load_tests.harness.http import free_port, get, metric_sum
from load_tests.harness.processes import Processes, process_tree
from load_tests.systems.engine import EngineTiming
from load_tests.systems.system import System
from shared.store.redis import keys

TENANTS = {"red": "key-red", "green": "key-green", "blue": "key-blue"}
_N_WORKERS = 2
_LEASE_S = 5.0


class SoakFleet(System):
    """A gateway, two workers and a durable Redis, with several tenants.

    Ended jobs are kept for `kept_s` seconds only.
    """

    name = "soak"

    def __init__(self, processes: Processes, timing: EngineTiming, kept_s: float) -> None:
        super().__init__(processes, timing)
        self._kept_s = kept_s
        self._worker_ports: list[int] = []

    def start(self) -> None:
        """Start Redis, the workers, the gateway."""
        redis_url = self.start_redis().url
        fleet = {"redis_url": redis_url, "lease_s": _LEASE_S}
        for n in range(_N_WORKERS):
            port = free_port()
            self.start_flotilla(
                "worker", f"worker {n + 1}", "engine", port, worker_port=port, **fleet
            )
            self._worker_ports.append(port)
        port = free_port()
        self.start_flotilla(
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
        """The gateway's address."""
        return f"http://127.0.0.1:{self.ports[0]}"

    def figures(self) -> dict[str, float]:
        """Return all figures that must not grow; names of sizes end with ` bytes`."""
        figures = {}
        for process in self.processes:
            figures[f"{process.label} RSS bytes"] = float(process.memory().rss)
            figures[f"{process.label} open files"] = float(
                sum(map(_open_files, process_tree(process.popen.pid)))
            )
        client = self.redis[0].client
        figures["Redis used_memory bytes"] = float(client.info("memory")["used_memory"])
        figures["Redis keys"] = float(client.dbsize())
        return figures | self.work()

    def work(self) -> dict[str, float]:
        """Return the figures that jobs cause; all are 0 some time after the last job."""
        client: Any = self.redis[0].client
        base = keys.base(0)
        figures = {
            f"{kind} keys": float(sum(1 for _ in client.scan_iter(f"{base}{kind}:*", count=1000)))
            for kind in (keys.JOB, keys.LOG)
        }
        indices = [base + keys.EXPIRING, *(keys.jobs(0, tenant) for tenant in TENANTS)]
        figures["index entries"] = float(sum(map(client.zcard, indices)))
        gateway = _metrics(self.ports[0])
        figures["open streams"] = metric_sum(gateway, "flotilla_open_streams")
        figures["unfinished jobs"] = metric_sum(gateway, "flotilla_jobs")
        workers = [_metrics(port) for port in self._worker_ports]
        figures["busy slots"] = sum(
            metric_sum(text, "flotilla_worker_slots", 'use="busy"') for text in workers
        )
        return figures


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0


def _metrics(port: int) -> str:
    key = next(iter(TENANTS.values()))
    return get(port, "/metrics", {"authorization": f"Bearer {key}"})[1]

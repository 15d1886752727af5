"""The figures that are sampled from a fleet in a soak test."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from load_tests.harness.fleet import Fleet
from load_tests.harness.http import get, metric_sum
from load_tests.harness.processes import process_tree
from shared.store.redis import keys

TENANTS = {"red": "key-red", "green": "key-green", "blue": "key-blue"}


def figures(fleet: Fleet) -> dict[str, float]:
    """Return all figures that must not grow; names of sizes end with ` bytes`."""
    found = {}
    for process in fleet.processes:
        found[f"{process.label} PSS bytes"] = float(process.memory().pss)
        found[f"{process.label} open files"] = float(
            sum(map(_open_files, process_tree(process.popen.pid)))
        )
    client: Any = fleet.client
    found["Redis used_memory bytes"] = float(client.info("memory")["used_memory"])
    found["Redis keys"] = float(client.dbsize())
    return found | work(fleet)


def work(fleet: Fleet) -> dict[str, float]:
    """Return the figures that jobs cause; all are 0 some time after the last job."""
    client: Any = fleet.client
    base = keys.base(0)
    found = {
        f"{kind} keys": float(sum(1 for _ in client.scan_iter(f"{base}{kind}:*", count=1000)))
        for kind in (keys.JOB, keys.LOG)
    }
    indices = [base + keys.EXPIRING, *(keys.jobs(0, tenant) for tenant in TENANTS)]
    found["index entries"] = float(sum(map(client.zcard, indices)))
    key = next(iter(TENANTS.values()))
    gateway = get(fleet.ports[0], "/metrics", {"authorization": f"Bearer {key}"})[1]
    found["open streams"] = metric_sum(gateway, "flotilla_open_streams")
    found["unfinished jobs"] = metric_sum(gateway, "flotilla_jobs")
    running = [client.hget(keys.worker(worker.label), "running") for worker in fleet.workers]
    found["busy slots"] = float(sum(int(each or 0) for each in running))
    return found


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0

"""The figures that are sampled from a fleet in a soak test."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

from load_tests.harness.fleet import Fleet
from shared.store import keys
from tests.harness.processes import metric, process_tree

TENANTS = {"red": "key-red", "green": "key-green", "blue": "key-blue"}


def figures(fleet: Fleet) -> dict[str, float]:
    """Return all figures that must not grow; names of sizes end with ` bytes`."""
    found = {}
    for process in fleet.processes:
        found[f"{process.name} PSS bytes"] = float(process.memory().pss)
        found[f"{process.name} open files"] = float(
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
        for kind in ("job", "log")
    }
    indices = [base + "expiring", *(keys.of("jobs", 0, tenant) for tenant in TENANTS)]
    found["index entries"] = float(sum(map(client.zcard, indices)))
    key = next(iter(TENANTS.values()))
    url, headers = fleet.urls[0], {"authorization": f"Bearer {key}"}
    found["open streams"] = metric(url, "flotilla_open_streams", headers)
    found["unfinished jobs"] = metric(url, "flotilla_jobs", headers)
    running = [
        client.hget(keys.fleet("worker", worker.name), "running") for worker in fleet.workers
    ]
    found["busy slots"] = float(sum(int(each or 0) for each in running))
    return found


def _open_files(pid: int) -> int:
    with contextlib.suppress(OSError):
        return sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())
    return 0

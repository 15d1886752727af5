"""Runs one hostile request on a fleet and measures what other clients notice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from load_tests.faults.fleet import FaultFleet
from load_tests.faults.hostile.bystanders import Bystanders
from load_tests.faults.hostile.raw_http import KEY
from load_tests.faults.hostile.requests import DESCRIPTORS, AttackTarget, HostileRequest
from load_tests.harness.processes import Process, Processes
from load_tests.harness.table import Table
from load_tests.vllm.systems import VARIANTS
from worker.demo import MODEL_NAME

_WARM_UP_S = 2.0
_LABELS = ("gateway", "redis", "worker")
_VLLM_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class HostileRow:
    """What other clients noticed of one hostile request."""

    title: str
    response: str
    """What the server answered."""
    stall_ms: float
    """Longest time without data of another client's stream."""
    probe_ms: float
    """Slowest `GET /healthz`."""
    grown_mb: dict[str, float]
    """Growth of resident memory at its peak, by process."""
    kept_mb: dict[str, float]
    """The same some seconds after the request."""
    failures: dict[str, int]
    """Failed streams and probes of other clients, by reason."""


def run_hostile(name: str, hostile: HostileRequest, folder: Path, after_s: float) -> HostileRow:
    """Run a hostile request on a new fleet. Raises ProcessError.

    `after_s`: seconds until memory is measured again.
    """
    fleet = FaultFleet(
        folder / f"hostile-{name}",
        workers=1,
        lease_s=15.0,
        descriptors=DESCRIPTORS,
        api_keys=f"tenant:{KEY}",
    )
    try:
        gateway = fleet.gateways[0]
        processes = {"gateway": gateway, "redis": fleet.redis.process, "worker": fleet.workers[0]}
        target = AttackTarget(fleet.ports[0], gateway.popen.pid, idle_s=max(after_s, 5.0))
        hostile.prepare(target)
        return _observe(
            hostile, target, processes, Bystanders(target.port, target.model, processes), after_s
        )
    finally:
        fleet.close()


def run_hostile_vllm(
    hostiles: Mapping[str, HostileRequest], processes: Processes, after_s: float
) -> list[HostileRow]:
    """Run hostile requests on one fleet with real vLLM. Raises ProcessError."""
    system = VARIANTS["fleet"].start(processes)
    labels = {process.label: process for process in system.processes}
    port = system.ports[0]
    target = AttackTarget(port, labels["gateway"].popen.pid, after_s, MODEL_NAME)
    rows = []
    for hostile in hostiles.values():
        bystanders = Bystanders(port, MODEL_NAME, labels, _VLLM_TOKENS)
        rows.append(_observe(hostile, target, labels, bystanders, after_s))
    return rows


def _observe(
    hostile: HostileRequest,
    target: AttackTarget,
    processes: Mapping[str, Process],
    bystanders: Bystanders,
    after_s: float,
) -> HostileRow:
    bystanders.start()
    time.sleep(_WARM_UP_S)
    before = bystanders.memory()
    bystanders.measure()
    try:
        response = hostile.attack(target)
        peak = dict(bystanders.peak)
        time.sleep(after_s)
        after = bystanders.memory()
        stall_s, probe_s = bystanders.longest_silence_s, bystanders.slowest_probe_s
    finally:
        bystanders.end()
    return HostileRow(
        title=hostile.title,
        response=response,
        stall_ms=1e3 * stall_s,
        probe_ms=1e3 * probe_s,
        grown_mb={label: (peak[label] - before[label]) / 1e6 for label in processes},
        kept_mb={label: (after[label] - before[label]) / 1e6 for label in processes},
        failures=dict(Counter(bystanders.failures)),
    )


def hostile_table(rows: Sequence[HostileRow], after_s: float) -> Table:
    """Return the table with a row per request."""
    head = [
        "request",
        "response",
        "longest stall of\nanother stream ms",
        "slowest probe\nms",
        *(f"{label}\n+MB (after {after_s:.0f} s)" for label in _LABELS),
        "other clients' failures",
    ]
    cells = [
        [
            row.title,
            row.response,
            f"{row.stall_ms:.0f}",
            f"{row.probe_ms:.0f}",
            *(f"{row.grown_mb[label]:.0f} ({row.kept_mb[label]:.0f})" for label in _LABELS),
            ", ".join(f"{n} {what}" for what, n in row.failures.items()) or "0",
        ]
        for row in rows
    ]
    return Table("What one client's requests do to other clients", head, cells)

"""One hostile request's row: a fleet, others' streams beside it, and what both noticed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from load_tests.bench.report import Table
from load_tests.faults.fleet import Fleet
from load_tests.faults.hostile.bystanders import Witness
from load_tests.faults.hostile.raw_http import KEY
from load_tests.faults.hostile.requests import DESCRIPTORS, Hostile, Target
from load_tests.harness.processes import Process, Processes
from load_tests.vllm.systems import VARIANTS
from worker.demo import MODEL_NAME

_WARM_UP_S = 2.0
_LABELS = ("gateway", "redis", "worker")
_VLLM_TOKENS = 1000


@dataclass(frozen=True, slots=True)
class HostileRow:
    """What others saw of one hostile request."""

    title: str
    answered: str
    stall_ms: float
    """The longest silence of another stream."""
    probe_ms: float
    """The slowest GET /healthz."""
    grown_mb: dict[str, float]
    """Resident memory at its peak, above what it was before; by process."""
    kept_mb: dict[str, float]
    """The same some time after."""
    failures: dict[str, int]
    """Streams and probes of others that did not end well."""


def run_hostile(name: str, hostile: Hostile, folder: Path, after_s: float) -> HostileRow:
    """On a fleet of its own. Raises ProcessError."""
    fleet = Fleet(
        folder / f"hostile-{name}",
        workers=1,
        lease_s=15.0,
        descriptors=DESCRIPTORS,
        api_keys=f"tenant:{KEY}",
    )
    try:
        gateway = fleet.gateways[0]
        processes = {"gateway": gateway, "redis": fleet.redis.process, "worker": fleet.workers[0]}
        target = Target(fleet.ports[0], gateway.popen.pid, patience_s=max(after_s, 5.0))
        hostile.prepare(target)
        return _observe(
            hostile, target, processes, Witness(target.port, target.model, processes), after_s
        )
    finally:
        fleet.close()


def run_hostile_vllm(
    hostiles: Mapping[str, Hostile], processes: Processes, after_s: float
) -> list[HostileRow]:
    """On one fleet with real vLLM, which takes a while to start. Raises ProcessError."""
    system = VARIANTS["fleet"].start(processes)
    labels = {process.label: process for process in system.processes}
    port = system.ports[0]
    target = Target(port, labels["gateway"].popen.pid, after_s, MODEL_NAME)
    rows = []
    for hostile in hostiles.values():
        witness = Witness(port, MODEL_NAME, labels, _VLLM_TOKENS)
        rows.append(_observe(hostile, target, labels, witness, after_s))
    return rows


def _observe(
    hostile: Hostile,
    target: Target,
    processes: Mapping[str, Process],
    witness: Witness,
    after_s: float,
) -> HostileRow:
    witness.start()
    time.sleep(_WARM_UP_S)
    before = witness.memory()
    witness.measure()
    try:
        answered = hostile.attack(target)
        peak = dict(witness.peak)
        time.sleep(after_s)
        after = witness.memory()
        stall_s, probe_s = witness.longest_silence_s, witness.slowest_probe_s
    finally:
        witness.end()
    return HostileRow(
        title=hostile.title,
        answered=answered,
        stall_ms=1e3 * stall_s,
        probe_ms=1e3 * probe_s,
        grown_mb={label: (peak[label] - before[label]) / 1e6 for label in processes},
        kept_mb={label: (after[label] - before[label]) / 1e6 for label in processes},
        failures=dict(Counter(witness.failures)),
    )


def hostile_table(rows: Sequence[HostileRow], after_s: float) -> Table:
    """What the command prints."""
    head = [
        "request",
        "answered",
        "longest stall of\nanother stream ms",
        "slowest probe\nms",
        *(f"{label}\n+MB (after {after_s:.0f} s)" for label in _LABELS),
        "others' failures",
    ]
    cells = [
        [
            row.title,
            row.answered,
            f"{row.stall_ms:.0f}",
            f"{row.probe_ms:.0f}",
            *(f"{row.grown_mb[label]:.0f} ({row.kept_mb[label]:.0f})" for label in _LABELS),
            ", ".join(f"{n} {what}" for what, n in row.failures.items()) or "0",
        ]
        for row in rows
    ]
    return Table("What one request does to others", head, cells)

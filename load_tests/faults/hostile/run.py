"""Runs one hostile request on a fleet and measures what other clients notice."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from load_tests.faults.fleet import FaultFleet
from load_tests.faults.hostile.bystanders import Bystanders
from load_tests.faults.hostile.raw_http import API_KEYS
from load_tests.faults.hostile.requests import DESCRIPTORS, AttackTarget, HostileRequest
from load_tests.faults.hostile.row import HostileRow
from load_tests.harness.processes import Process, Processes
from load_tests.vllm.systems import VARIANTS
from worker.demo import MODEL_NAME

_WARM_UP_S = 2.0
_VLLM_TOKENS = 1000
_VLLM_IDLE_S = 20.0
"""The rows for comparison take so long: the longer, the more noise they see."""


def run_hostile(name: str, hostile: HostileRequest, folder: Path, after_s: float) -> HostileRow:
    """Run a hostile request on a new fleet. Raises ProcessError.

    `after_s`: seconds until memory is measured again.
    """
    fleet = FaultFleet(
        folder / f"hostile-{name}",
        workers=1,
        lease_s=15.0,
        descriptors=DESCRIPTORS,
        api_keys=API_KEYS,
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


class VllmTarget:
    """One fleet with real vLLM and the demo model, for all rows."""

    def __init__(self, processes: Processes, after_s: float) -> None:
        """Start it. Raises ProcessError."""
        system = replace(VARIANTS["fleet"], api_keys=API_KEYS).start(processes)
        self._labels = {process.label: process for process in system.processes}
        self._after_s = after_s
        self._target = AttackTarget(
            system.ports[0], self._labels["gateway"].popen.pid, _VLLM_IDLE_S, MODEL_NAME
        )

    def run(self, hostile: HostileRequest) -> HostileRow:
        """Run one hostile request."""
        port = self._target.port
        bystanders = Bystanders(port, MODEL_NAME, self._labels, _VLLM_TOKENS)
        hostile.prepare(self._target)
        return _observe(hostile, self._target, self._labels, bystanders, self._after_s)


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
        expected=hostile.expected,
        stall_ms=1e3 * stall_s,
        probe_ms=1e3 * probe_s,
        grown_mb={label: (peak[label] - before[label]) / 1e6 for label in processes},
        kept_mb={label: (after[label] - before[label]) / 1e6 for label in processes},
        failures=dict(Counter(bystanders.failures)),
    )

"""Runs hostile requests on fleets and measures what other clients notice."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from multiprocessing.connection import Connection
from pathlib import Path

from load_tests.faults.hostile.anonymous_attacks import DESCRIPTORS
from load_tests.faults.hostile.attack import AttackTarget, HostileRequest
from load_tests.faults.hostile.bystanders import Bystanders
from load_tests.faults.hostile.catalogue import BASELINES
from load_tests.faults.hostile.raw_http import API_KEYS
from load_tests.faults.hostile.row import HostileRow, broken
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import print_progress

_WARM_UP_S = 2.0
_TOKENS, _VLLM_TOKENS = 2000, 1000
_VLLM_IDLE_S = 20.0
"""The rows for comparison take so long: the longer, the more noise they see."""
_TURNS = 3
"""So often is a hostile request tried that breaks a limit, and the shortest silence counts: a busy
machine stops a stream now and then, a defect each time."""


class HostileRun:
    """Runs rows: with real vLLM all on one fleet, otherwise each on a fleet of its own."""

    def __init__(self, folder: Path, after_s: float, *, vllm: bool) -> None:
        """`after_s`: seconds until memory is measured again."""
        self.rows: dict[str, HostileRow] = {}
        self.wrong: dict[str, list[str]] = {}
        """The limits that a row breaks, by its name."""
        self._folder = folder
        self._after_s = after_s
        self._vllm = vllm
        self._n_fleets = 0

    def run(self, known: dict[str, HostileRequest], names: list[str]) -> None:
        """Run these rows, after those for comparison."""
        with self._fleet() if self._vllm else nullcontext() as shared:
            for name in dict.fromkeys((*BASELINES, *names)):
                self._run_row(name, known[name], shared)

    def _run_row(self, name: str, hostile: HostileRequest, shared: Fleet | None) -> None:
        idle_ms = max(
            (row.stall_ms for each, row in self.rows.items() if each in BASELINES), default=0
        )
        for _ in range(1 if name in BASELINES else _TURNS):
            began = time.monotonic()
            try:
                with nullcontext(shared) if shared else self._fleet() as fleet:
                    row = self._observe(hostile, fleet)
            except (RuntimeError, OSError, ValueError) as error:
                self.wrong[name] = [f"not measured: {type(error).__name__}: {error}"]
                print_progress(f"{name}: {self.wrong[name][0]}")
                continue
            self.rows[name] = min(self.rows.get(name, row), row, key=lambda each: each.stall_ms)
            self.wrong[name] = [] if name in BASELINES else broken(self.rows[name], idle_ms)
            print_progress(f"{name}: {time.monotonic() - began:.0f} s, {row.response}")
            if not self.wrong[name]:
                return

    @contextmanager
    def _fleet(self) -> Iterator[Fleet]:
        self._n_fleets += 1
        shape = FleetShape(
            vllm=self._vllm,
            descriptors=None if self._vllm else DESCRIPTORS,
            settings={"api_keys": API_KEYS},
        )
        fleet = Fleet(self._folder / f"hostile-{self._n_fleets}", shape)
        if self._vllm:
            _prefer(process.popen.pid for process in fleet.processes)
        try:
            yield fleet
        finally:
            fleet.close()

    def _observe(self, hostile: HostileRequest, fleet: Fleet) -> HostileRow:
        labels = ("gateway", "redis", "worker")
        processes = dict(zip(labels, fleet.processes, strict=True))
        idle_s = _VLLM_IDLE_S if self._vllm else max(self._after_s, 5.0)
        target = AttackTarget(fleet.ports[0], idle_s)
        hostile.prepare(target)
        tokens = _VLLM_TOKENS if self._vllm else _TOKENS
        attacker = _start_attacker(hostile, target)
        bystanders = Bystanders(target.port, processes, tokens)
        bystanders.start()
        if self._vllm:
            _prefer([os.getpid()])
        time.sleep(_WARM_UP_S)
        before = bystanders.memory()
        bystanders.measure()
        try:
            attacker.send("begin")
            response = attacker.recv()
            if isinstance(response, Exception):
                raise response
            peak = dict(bystanders.peak)
            time.sleep(self._after_s)
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


def _start_attacker(hostile: HostileRequest, target: AttackTarget) -> Connection:
    """Return the connection to a process of its own: with it, the clients would wait for its GIL.

    It attacks when it receives anything, and sends the server's answer or the exception.
    """
    fork = multiprocessing.get_context("fork")
    ours, theirs = fork.Pipe()

    def attack() -> None:
        with suppress(PermissionError):
            os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))
        theirs.recv()
        try:
            theirs.send(hostile.attack(target))
        except (RuntimeError, OSError, ValueError) as error:
            theirs.send(error)

    fork.Process(target=attack, daemon=True).start()
    theirs.close()
    return ours


def _prefer(pids: Iterable[int]) -> None:
    """Run the threads of these processes before those of the engine, which is a child of one.

    As on a machine with a core for each: on two cores vLLM keeps other processes from running for
    seconds, and a silence would not show what a request does to an event loop. Needs root.
    """
    with suppress(PermissionError):
        for pid in pids:
            for task in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setscheduler(int(task.name), os.SCHED_RR, os.sched_param(1))

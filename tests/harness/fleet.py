"""Gateways, workers and maintenance as child processes, each on a free port."""

from __future__ import annotations

import atexit
import functools
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from load_tests.harness.forked_popen import ForkedPopen, ForkedProcesses
from tests.harness.servers import free_port
from tests.harness.settings import child_environment
from tests.harness.waiting import wait_for

_END_S = 2.0
LEASE_S = 2.0
"""Shorter than the default, so that tests of lost workers are fast."""


@dataclass
class Process:
    """A gateway, worker or maintenance process."""

    name: str
    url: str
    popen: subprocess.Popen[bytes] | ForkedPopen
    log: Path

    def check(self) -> None:
        """Fail with the end of its log if the process has ended."""
        assert self.popen.poll() is None, f"{self.name} ended:\n{self.log.read_text()[-3000:]}"

    def ready(self) -> bool:
        """Return whether `/readyz` answers 200."""
        self.check()
        try:
            return httpx.get(f"{self.url}/readyz").status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to this process alone and wait for its end."""
        self.popen.kill()
        self.popen.wait(20)

    def terminate(self) -> None:
        """Send SIGTERM; does not wait."""
        self.popen.terminate()

    def stop(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT."""
        os.kill(self.popen.pid, number)

    def metric(self, name: str, **labels: str) -> float:
        """Sum the samples of a metric that have these labels."""
        return metric(self.url, name, **labels)

    def has(self, name: str, **labels: str) -> bool:
        """Return whether a sample of the metric has these labels."""
        return bool(_samples(self.url, name, labels))


def metric(url: str, name: str, **labels: str) -> float:
    """Sum the samples of a metric at `url`/metrics that have these labels."""
    return sum(_samples(url, name, labels))


def _samples(url: str, name: str, labels: dict[str, str]) -> list[float]:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = []
    for line in httpx.get(f"{url}/metrics", timeout=30).text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and all(part in sample for part in wanted):
            found.append(float(value))
    return found


@dataclass
class Stack:
    """Processes that use one Redis; `close` ends those that still run."""

    redis_url: str
    folder: Path
    processes: list[Process] = field(default_factory=list)
    launcher: tuple[str, ...] = ()
    """A program that starts each process, with the process's command as its arguments."""

    def gateway(self, **changes: Any) -> Process:
        """Start a gateway and wait until it is ready; `changes` are settings."""
        port = free_port()
        values = {"port": port, "lease_s": LEASE_S, **changes}
        process = self._start("gateway", f"http://127.0.0.1:{port}", values)
        wait_for(process.ready, "gateway is ready")
        return process

    def worker(self, *, wait: bool = True, **changes: Any) -> Process:
        """Start a worker, by default with the simulated engine, and wait until it is ready."""
        port = free_port()
        values = {"engine": "simulated", "worker_port": port, "lease_s": LEASE_S, **changes}
        process = self._start("worker", f"http://127.0.0.1:{port}", values)
        if wait:
            wait_for(process.ready, "worker is ready")
        return process

    def serve(self, module: str, **changes: Any) -> Process:
        """Start a worker process of another module; does not wait."""
        url = f"http://127.0.0.1:{changes['worker_port']}"
        return self._start(module, url, {"lease_s": LEASE_S, **changes})

    def start(self, module: str, *words: str, **changes: Any) -> Process:
        """Start a process that serves no HTTP, with these arguments; does not wait."""
        return self._start(module, "", {"lease_s": LEASE_S, **changes}, words)

    def maintenance(self, **changes: Any) -> Process:
        """Start a maintenance process, which serves no HTTP; does not wait."""
        return self._start("gateway.maintenance", "", {"lease_s": LEASE_S, **changes})

    def _start(
        self, module: str, url: str, values: dict[str, Any], words: tuple[str, ...] = ()
    ) -> Process:
        log = self.folder / f"{module}-{len(self.processes)}.log"
        environment = child_environment(redis_url=self.redis_url, **values)
        popen: subprocess.Popen[bytes] | ForkedPopen
        simulated = module == "gateway" or values.get("engine") == "simulated"
        if module in MODULES and simulated and not self.launcher:
            popen = start_forked(module, environment, log)
        else:
            with log.open("wb") as output:
                popen = subprocess.Popen(
                    [*self.launcher, sys.executable, "-m", module, *words],
                    env=environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
        process = Process(module, url, popen, log)
        self.processes.append(process)
        return process

    def close(self) -> None:
        """Terminate all processes; kill those that still run after a while, with open answers."""
        for process in self.processes:
            if process.popen.poll() is None:
                os.kill(process.popen.pid, signal.SIGCONT)
                process.terminate()
        until = time.monotonic() + _END_S
        for process in self.processes:
            try:
                process.popen.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()


MODULES = frozenset({"gateway", "worker"})
"""What can be started this way."""


@functools.cache
def _forked() -> ForkedProcesses:
    """Return this test process's fork server; it ends with the test process."""
    processes = ForkedProcesses(Path(tempfile.mkdtemp(prefix="flotilla-tests-")))
    atexit.register(processes.close)
    return processes


def start_forked(module: str, environment: Mapping[str, str], log: Path) -> ForkedPopen:
    """Start `module`, one of MODULES, with these variables. Its output goes to `log`."""
    return _forked().start(module, log, environment)

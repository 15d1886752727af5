"""One process of a test or a load test: its end, its metrics, its CPU time and memory.

CPU time is read from the kernel's CPU clock of each process: nanoseconds on a CPU, summed over all
threads, including those that have ended. Child processes that have ended are counted in ticks of
10 ms.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import httpx

from tests.harness.client import http
from tests.harness.fork import ForkedPopen
from tests.harness.waiting import ProcessError

_ANSWER_S = 5.0
_KILL_S = 20.0
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2


@dataclass
class Process:
    """A child process together with its own descendants; it leads a process group."""

    name: str
    url: str
    """Where it serves HTTP; empty if it does not."""
    popen: subprocess.Popen[bytes] | ForkedPopen
    log: Path

    def check(self) -> None:
        """Raise ProcessError if the process has ended."""
        if self.popen.poll() is not None:
            raise ProcessError(f"{self.name} ended with {self.popen.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        """The last 3,000 characters of its log."""
        return self.log.read_text(errors="replace")[-3000:]

    def ready(self, path: str = "/readyz") -> bool:
        """Return whether the path answers 200. Raises ProcessError."""
        self.check()
        try:
            return http.get(f"{self.url}{path}", timeout=_ANSWER_S).status_code == 200
        except httpx.TransportError:
            return False

    def kill(self) -> None:
        """Send SIGKILL to this process alone and wait for its end."""
        self.popen.kill()
        self.popen.wait(_KILL_S)

    def terminate(self) -> None:
        """Send SIGTERM; does not wait."""
        self.popen.terminate()

    def stop(self, number: int) -> None:
        """Send SIGSTOP or SIGCONT."""
        self.popen.send_signal(number)

    def metric(self, name: str, **labels: str) -> float:
        """Sum the samples of a metric that have these labels."""
        return metric(self.url, name, **labels)

    def has(self, name: str, **labels: str) -> bool:
        """Return whether a sample of the metric has these labels."""
        return bool(_samples(self.url, {}, name, labels))

    def cpu_s(self) -> float:
        """Return the seconds of CPU time used so far, by the process and its descendants."""
        return sum(_cpu_s(pid) for pid in process_tree(self.popen.pid))

    def memory(self) -> MemoryUse:
        """Return the memory of the process and its descendants."""
        each = [_memory_use(pid) for pid in process_tree(self.popen.pid)]
        return MemoryUse(sum(use.pss for use in each), sum(use.private for use in each))


def end_all(processes: Iterable[Process], end_s: float) -> None:
    """Terminate all, with their descendants; kill those that run on after `end_s`."""
    running = [process for process in processes if process.popen.poll() is None]
    for process in running:
        _signal_group(process, signal.SIGTERM)
        _signal_group(process, signal.SIGCONT)  # a stopped one handles SIGTERM only after it
    until = time.monotonic() + end_s
    for process in running:
        try:
            process.popen.wait(max(0.1, until - time.monotonic()))
        except subprocess.TimeoutExpired:
            _signal_group(process, signal.SIGKILL)
            process.popen.wait(_KILL_S)


def _signal_group(process: Process, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.popen.pid, number)


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module with this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def metric(url: str, name: str, headers: dict[str, str] | None = None, **labels: str) -> float:
    """Sum the samples of a metric at `url`/metrics that have these labels."""
    return sum(_samples(url, headers or {}, name, labels))


def _samples(url: str, headers: dict[str, str], name: str, labels: dict[str, str]) -> list[float]:
    wanted = [f'{key}="{value}"' for key, value in labels.items()]
    found = []
    answer = http.get(f"{url}/metrics", headers=headers)
    assert answer.status_code not in (401, 403), f"the metrics of {url} need a key"
    for line in answer.text.splitlines():
        sample, _, value = line.rpartition(" ")
        if sample.partition("{")[0] == name and all(part in sample for part in wanted):
            found.append(float(value))
    return found


def process_tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and all its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from process_tree(int(child))


class MemoryUse(NamedTuple):
    """Bytes: proportional set size (of a page that n processes share, 1/n); not shared ones."""

    pss: int
    private: int


def _cpu_s(pid: int) -> float:
    """Return CPU seconds of one process, including its children that have ended."""
    try:
        own_s = time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return own_s + (int(fields[13]) + int(fields[14])) / _TICKS_A_SECOND


def _memory_use(pid: int) -> MemoryUse:
    sizes = {}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return MemoryUse(0, 0)
    for line in lines:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) << 10
    return MemoryUse(sizes["Pss"], sizes["Private_Clean"] + sizes["Private_Dirty"])

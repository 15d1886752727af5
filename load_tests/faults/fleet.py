"""The fleet into which faults are injected: child processes with known pids and their own Redis."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import Process, Processes, python_command, wait_for
from load_tests.harness.redis_server import RedisServer
from load_tests.systems.engine import EngineTiming
from shared.store.redis import keys

_DOWN_S = 0.5
_END_S = 40.0
"""More than the 30 s that a worker has to drain."""


class FaultFleet:
    """Redis, gateways and workers; a replacement takes its predecessor's index in the lists."""

    def __init__(
        self,
        folder: Path,
        *,
        workers: int = 3,
        gateways: int = 1,
        step_ms: float = 25.0,
        lease_s: float = 1.5,
        appendonly: bool = True,
        descriptors: int | None = None,
        **settings: Any,
    ) -> None:
        """Start the fleet and wait until it is ready. Raises ProcessError.

        `step_ms` is the length of an engine step, `descriptors` the gateway's limit of open files;
        `settings` are Flotilla's.
        """
        folder.mkdir(parents=True)
        self.lease_s = lease_s
        self._processes = Processes(folder)
        self._timing = EngineTiming(step_ms=step_ms, step_us_per_seq=0, max_num_seqs=64)
        self._settings = settings
        self._descriptors = descriptors
        self._n_started = 0
        self.notes: list[str] = []
        """Remarks of faults, printed below the table."""
        self.workers: list[Process] = []
        self.gateways: list[Process] = []
        self.ports: list[int] = []
        """The gateways' ports."""
        self._worker_ids: dict[int, str] = {}
        self._ready: dict[int, Callable[[], bool]] = {}
        try:
            self.redis = RedisServer(
                self._processes, free_port(), folder / "redis", appendonly=appendonly
            )
            for _ in range(gateways):
                self.ports.append(free_port())
                self.gateways.append(self._start_gateway(self.ports[-1]))
            for _ in range(workers):
                self.workers.append(self.start_worker())
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def urls(self) -> list[str]:
        """The gateways' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def client(self) -> redis.Redis:
        """A synchronous client of the fleet's Redis."""
        return self.redis.client

    def worker_id(self, n: int) -> str:
        """Return the id of the n-th worker."""
        return self._worker_ids[self.workers[n].popen.pid]

    def start_worker(self, worker_id: str = "") -> Process:
        """Start another worker that is not in `workers`; does not wait until it is ready."""
        self._n_started += 1
        worker_id = worker_id or f"w-{self._n_started}"
        port = free_port()
        process = self._start("worker", port, worker_port=port, worker_id=worker_id)
        self._worker_ids[process.popen.pid] = worker_id
        return process

    def replace_worker(self, n: int) -> None:
        """Start a worker in the place of the n-th; does not wait until it is ready."""
        self.workers[n] = self.start_worker()

    def replace_gateway(self, n: int) -> None:
        """Start a gateway on the port of the n-th, which must have ended; does not wait."""
        self.gateways[n] = self._start_gateway(self.ports[n])

    def wait_until_ready(self) -> None:
        """Wait until all gateways and workers are ready. Raises ProcessError."""
        for process in (*self.gateways, *self.workers):
            wait_for(self._ready[process.popen.pid], f"{process.label} is ready", [process])

    def pause(self, process: Process, seconds: float) -> None:
        """Stop a process with SIGSTOP for some seconds."""
        send(process, signal.SIGSTOP)
        time.sleep(seconds)
        send(process, signal.SIGCONT)

    def restart_redis(self) -> None:
        """Kill Redis with SIGKILL; start it again on the same data after half a second."""
        kill(self.redis.process)
        time.sleep(_DOWN_S)
        self.redis.start()

    def since_renewal_s(self, n: int) -> float:
        """Return the seconds since the n-th worker renewed its leases.

        They are computed from the TTL of its fence key, which is one lease long when renewed.
        """
        left_ms: Any = self.client.pttl(keys.fence(0, self.worker_id(n)))
        return self.lease_s - max(0, int(left_ms)) / 1e3

    def close(self) -> None:
        """Kill all processes; their data is not needed any more."""
        for process in (*self.gateways, *self.workers):
            with contextlib.suppress(ProcessLookupError):
                process.popen.kill()
        self._processes.close()

    def _start_gateway(self, port: int) -> Process:
        return self._start("gateway", port, port=port)

    def _start(self, module: str, listen_port: int, **settings: Any) -> Process:
        environment = self._timing.environment(
            redis_url=self.redis.url, lease_s=self.lease_s, **settings, **self._settings
        )
        command: Sequence[str] = python_command(module)
        if module == "gateway" and self._descriptors is not None:
            command = ("prlimit", f"--nofile={self._descriptors}:{self._descriptors}", *command)
        process = self._processes.start(module, "front", command, environment)
        self._ready[process.popen.pid] = lambda: responds_ok(listen_port, "/readyz")
        return process


def send(process: Process, number: int) -> None:
    """Send a signal unless the process has ended."""
    if process.popen.poll() is None:
        os.kill(process.popen.pid, number)


def kill(process: Process) -> None:
    """Send SIGKILL and wait for the end."""
    process.popen.kill()
    process.popen.wait(_END_S)


def wait_for_end(process: Process) -> int:
    """Wait for a process to end; return its exit status. Kills it after 40 s."""
    try:
        return process.popen.wait(_END_S)
    except Exception:
        kill(process)
        raise

"""The fleet that is broken: single processes with known pids, and a Redis of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import redis

from load_tests.harness.processes import Process, Processes, RedisServer, answers, python, wait_for
from load_tests.systems.engine import EngineTiming
from load_tests.systems.system import free_port
from shared.protocol import keys

_DOWN_S = 0.5
_END_S = 40.0
"""A worker has 30 s to drain."""


class Fleet:
    """Workers and gateways keep their number in `workers` and `gateways` when they are replaced."""

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
        folder.mkdir(parents=True)
        self.lease_s = lease_s
        self._processes = Processes(folder)
        self._timing = EngineTiming(step_ms=step_ms, step_us_per_seq=0, max_num_seqs=64)
        self._settings = settings
        self._descriptors = descriptors
        self._n_started = 0
        self.notes: list[str] = []
        """What a fault has to say beside the figures."""
        self.workers: list[Process] = []
        self.gateways: list[Process] = []
        self.ports: list[int] = []
        """Of the gateways."""
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
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def client(self) -> redis.Redis:
        """Of the fleet's Redis, synchronous."""
        return self.redis.client

    def worker_id(self, n: int) -> str:
        return self._worker_ids[self.workers[n].popen.pid]

    # --- what faults do ---

    def start_worker(self, worker_id: str = "") -> Process:
        """One more; does not wait until it is ready, and is not in `workers`."""
        self._n_started += 1
        worker_id = worker_id or f"w-{self._n_started}"
        port = free_port()
        process = self._start("worker", port, worker_port=port, worker_id=worker_id)
        self._worker_ids[process.popen.pid] = worker_id
        return process

    def replace_worker(self, n: int) -> None:
        """Start a successor in its place; does not wait."""
        self.workers[n] = self.start_worker()

    def replace_gateway(self, n: int) -> None:
        """The same on the same port, when the last one has ended."""
        self.gateways[n] = self._start_gateway(self.ports[n])

    def wait_until_ready(self) -> None:
        """All workers and gateways that should be there. Raises ProcessError."""
        for process in (*self.gateways, *self.workers):
            wait_for(self._ready[process.popen.pid], f"{process.label} is ready", [process])

    def pause(self, process: Process, seconds: float) -> None:
        """Stop it with SIGSTOP for so long."""
        send(process, signal.SIGSTOP)
        time.sleep(seconds)
        send(process, signal.SIGCONT)

    def restart_redis(self) -> None:
        """Kill -9, and start it on the same data after a moment."""
        kill(self.redis.process)
        time.sleep(_DOWN_S)
        self.redis.start()

    def since_renewal_s(self, n: int) -> float:
        """Time since worker `n` renewed its leases; its fence lives for one lease."""
        left_ms: Any = self.client.pttl(keys.fence(0, self.worker_id(n)))
        return self.lease_s - max(0, int(left_ms)) / 1e3

    def close(self) -> None:
        """Kill what is left: nothing is lost that anybody wants."""
        for process in (*self.gateways, *self.workers):
            with contextlib.suppress(ProcessLookupError):
                process.popen.kill()
        self._processes.close()

    # --- processes ---

    def _start_gateway(self, port: int) -> Process:
        return self._start("gateway", port, port=port)

    def _start(self, module: str, at: int, **settings: Any) -> Process:
        environment = self._timing.environment(
            redis_url=self.redis.url, lease_s=self.lease_s, **settings, **self._settings
        )
        command: Sequence[str] = python(module)
        if module == "gateway" and self._descriptors is not None:
            command = ("prlimit", f"--nofile={self._descriptors}:{self._descriptors}", *command)
        process = self._processes.start(module, "front", command, environment)
        self._ready[process.popen.pid] = lambda: answers(at, "/readyz")
        return process


def send(process: Process, number: int) -> None:
    """A signal, if it has not ended."""
    if process.popen.poll() is None:
        os.kill(process.popen.pid, number)


def kill(process: Process) -> None:
    """SIGKILL; returns when it has ended."""
    process.popen.kill()
    process.popen.wait(_END_S)


def wait_for_end(process: Process) -> int:
    """Its exit status. Kills it when it takes too long."""
    try:
        return process.popen.wait(_END_S)
    except Exception:
        kill(process)
        raise

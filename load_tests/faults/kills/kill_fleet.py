"""The fleet that is killed: one Redis, gateways and workers, each replaced as soon as it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from gateway.launcher.local_redis import appendfsync
from gateway.launcher.ports import free_port
from load_tests.faults.kills.forked_processes import ForkedProcess, ForkedProcesses
from load_tests.harness.errors import ProcessError
from load_tests.harness.http import responds_ok
from load_tests.harness.processes import READY_S, Processes, wait_for
from load_tests.harness.redis_server import RedisServer
from load_tests.systems.engine import MODEL, EngineTiming
from load_tests.vllm.systems import LOADED_S
from shared.client.retries import Limits
from shared.job.states import WorkerState
from shared.platform.settings import Settings, to_environment
from shared.store.redis import keys

ENGINE_SIGNAL = signal.SIGUSR1
"""Ends the simulated engine in a worker (its fault `die_on_signal`)."""
_REWRITE_SIZE = "16mb"
"""A small append-only file is read quickly at each restart."""
_POLL_S = 0.005
_REDIS_S = 120.0
_CORE = b"VLLM::EngineCore"
"""Name of the child process in which a worker's vLLM computes."""
_SERVING = {json.dumps(state).encode() for state in (WorkerState.READY, WorkerState.BUSY)}
VLLM_SETTINGS: Mapping[str, Any] = {"served_model_name": MODEL, "engine_args": "--dtype float32"}
"""With float32 an answer does not depend on what else is in the batch. The demo model has the name
that the requests have."""
_HOST = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Numbers and settings of the fleet."""

    workers: int = 8
    gateways: int = 2
    step_ms: float = 25.0
    lease_s: float = 3.0
    max_attempts: int = 20
    """Above the default of 3: at this rate of kills some jobs lose several workers in a row before
    their first token."""
    result_ttl_s: float = 120.0
    silent_s: float = 6.0
    """A worker that stands still for good is killed and replaced after so long."""
    client_attempts: int = 200
    """Failed attempts in a row of the resuming client."""
    appendfsync: str = "always"
    vllm: bool = False
    """Real vLLM with the demo model instead of the simulated engine."""

    @classmethod
    def defaults(cls, workers: int, *, vllm: bool = False) -> FleetShape:
        """Return the shape of a plain `flotilla up`, but with more workers and another gateway."""
        settings = Settings()
        return cls(
            workers=workers,
            lease_s=settings.lease_s,
            max_attempts=settings.max_attempts,
            silent_s=2 * settings.lease_s,
            client_attempts=Limits().attempts,
            appendfsync=appendfsync(durable=settings.durable),
            vllm=vllm,
        )

    @property
    def engine(self) -> str:
        """What generates, in words."""
        return "vLLM, demo model, float32" if self.vllm else "simulated engine"

    @property
    def lost_after_s(self) -> float:
        """Seconds after which a worker that stands still loses its jobs."""
        return min(self.lease_s, Settings().silence_s)


class KillFleet:
    """Redis, gateways and workers; `workers` and `gateways` hold the processes that run now."""

    def __init__(self, folder: Path, shape: FleetShape, controls: Sequence[str] = ()) -> None:
        """Start the fleet and wait until it is ready. Raises ProcessError."""
        folder.mkdir(parents=True)
        self.shape = shape
        self.unexpected: list[str] = []
        """Processes that have ended by themselves, in words."""
        self.busy: set[int] = set()
        """Indexes of the workers that are stopped, or whose engine is dead."""
        self._folder = folder
        self._processes = Processes(folder)
        self._n_started = 0
        self._engine_killed: set[int] = set()
        self._forked: ForkedProcesses | None = None
        try:
            self.redis = RedisServer(
                self._processes,
                free_port(_HOST),
                folder / "redis",
                appendfsync=shape.appendfsync,
                auto_aof_rewrite_min_size=_REWRITE_SIZE,
            )
            self._environment = _environment(shape, self.redis.url)
            self._forked = ForkedProcesses(
                folder, controls, vllm=shape.vllm, count_tokens=not shape.vllm
            )
            self.ports = [free_port(_HOST) for _ in range(shape.gateways)]
            self.gateways = [self._start_gateway(n) for n in range(shape.gateways)]
            self.workers = [self._start_worker(n) for n in range(shape.workers)]
            self._wait_until_ready()
        except BaseException:
            self.close()
            raise

    @property
    def urls(self) -> list[str]:
        """The gateways' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def forked(self) -> ForkedProcesses:
        """The processes that are not Redis."""
        assert self._forked is not None, "closed"
        return self._forked

    def kill_worker(self, n: int) -> None:
        """Kill a worker with SIGKILL; start a replacement."""
        self.forked.signal(self.workers[n], signal.SIGKILL)
        self.workers[n] = self._start_worker(n)

    def kill_engine(self, n: int) -> None:
        """Kill the engine in a worker. `supervise` replaces the worker once it has ended."""
        self._engine_killed.add(self.workers[n].pid)
        self.busy.add(n)
        if self.shape.vllm:
            os.kill(_engine_core(self.workers[n].pid), signal.SIGKILL)
        else:
            self.forked.signal(self.workers[n], ENGINE_SIGNAL)

    def all_serve(self) -> bool:
        """Return whether all workers run and have loaded their model; False without Redis."""
        pipe = self.redis.client.pipeline(transaction=False)
        for worker in self.workers:
            pipe.hget(keys.worker(worker.name), "state")
        try:
            states = pipe.execute()
        except (RedisError, OSError):
            return False
        return not self.busy and _SERVING.issuperset(states)

    async def stop_worker(self, n: int, seconds: float) -> None:
        """Stop a worker for some seconds."""
        self.busy.add(n)
        self.forked.signal(self.workers[n], signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            self.forked.signal(self.workers[n], signal.SIGCONT)
            self.busy.discard(n)

    async def silence_worker(self, n: int) -> None:
        """Stop a worker for good; after `silent_s`, kill and replace it."""
        self.busy.add(n)
        self.forked.signal(self.workers[n], signal.SIGSTOP)
        try:
            await asyncio.sleep(self.shape.silent_s)
        finally:
            self.kill_worker(n)
            self.busy.discard(n)

    async def kill_gateway(self, n: int) -> None:
        """Kill a gateway with SIGKILL; start it again on its port."""
        killed = self.gateways[n]
        self.forked.signal(killed, signal.SIGKILL)
        while killed.pid not in self.forked.ended:  # its port is in use until then
            await asyncio.sleep(_POLL_S)
            self.forked.poll()
        self.gateways[n] = self._start_gateway(n)

    async def kill_redis(self) -> None:
        """Kill Redis with SIGKILL; start it again and wait until it answers."""
        self.redis.kill()
        self.redis.start_process()
        until = time.monotonic() + _REDIS_S
        while not await asyncio.to_thread(self.redis.ready):
            self.redis.process.check()
            if time.monotonic() > until:
                raise ProcessError(f"Redis is not ready:\n{self.redis.process.tail()}")
            await asyncio.sleep(_POLL_S)

    def supervise(self) -> None:
        """Replace the workers and gateways that have ended."""
        self.forked.poll()
        for n, worker in enumerate(self.workers):
            status = self.forked.ended.get(worker.pid)
            if status is None:
                continue
            if worker.pid in self._engine_killed:
                self._engine_killed.discard(worker.pid)
                self.busy.discard(n)
            else:
                self._note_end(worker, status)
            self.workers[n] = self._start_worker(n)
        for n, gateway in enumerate(self.gateways):
            status = self.forked.ended.get(gateway.pid)
            if status is not None and status != -signal.SIGKILL:
                self._note_end(gateway, status)
                self.gateways[n] = self._start_gateway(n)

    def close(self) -> None:
        """End all processes; their data is not needed any more."""
        if self._forked is not None:
            self._forked.close()
        self._processes.close()

    def _note_end(self, process: ForkedProcess, status: int) -> None:
        self.unexpected.append(f"{process.name} ended with {status}:\n{process.tail()}")

    def _start_worker(self, n: int) -> ForkedProcess:
        self._n_started += 1
        worker_id = f"w-{self._n_started}"
        environment = {
            **self._environment,
            "FLOTILLA_WORKER_ID": worker_id,
            "FLOTILLA_WORKER_PORT": "0",
        }
        return self.forked.start("worker", worker_id, self._folder / f"worker-{n}.log", environment)

    def _start_gateway(self, n: int) -> ForkedProcess:
        environment = {**self._environment, "FLOTILLA_PORT": str(self.ports[n])}
        name = f"gateway-{n}"
        return self.forked.start("gateway", name, self._folder / f"{name}.log", environment)

    def _wait_until_ready(self) -> None:
        for port in self.ports:
            wait_for(partial(responds_ok, port, "/readyz"), "a gateway is ready")

        def registered() -> bool:
            self.supervise()
            if self.unexpected:
                raise ProcessError(self.unexpected[0])
            return self.all_serve()

        deadline_s = LOADED_S if self.shape.vllm else READY_S
        wait_for(registered, "all workers are registered", deadline_s=deadline_s)


def _engine_core(worker: int) -> int:
    """Return the engine process of a worker. Raises ProcessError if it has none."""
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if _CORE in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    raise ProcessError(f"process {worker} has no {_CORE.decode()}")


def _environment(shape: FleetShape, redis_url: str) -> dict[str, str]:
    timing = EngineTiming(step_ms=shape.step_ms, step_us_per_seq=0, max_num_seqs=64)
    settings = {
        "redis_url": redis_url,
        "lease_s": shape.lease_s,
        "max_attempts": shape.max_attempts,
        "result_ttl_s": shape.result_ttl_s,
        "stream_ttl_s": shape.result_ttl_s,
        "log_level": "warning",
        "log_format": "json",
        "access_log": False,
    }
    if shape.vllm:
        return to_environment(Settings(), **settings, **VLLM_SETTINGS)
    return timing.environment(sim_faults=f"die_on_signal={ENGINE_SIGNAL.name}", **settings)

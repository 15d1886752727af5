"""A fleet with its own Redis, whose gateways and workers are forked from one process."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from gateway.gateway_settings import GatewaySettings
from gateway.launcher.local_redis import appendfsync
from load_tests.harness.preload import generated_tokens
from load_tests.systems.engine import MODEL, EngineTiming
from shared.job.states import WorkerState
from shared.store import keys
from tests.harness.fleet import Stack
from tests.harness.fork import START_AFTER_S, ForkServer
from tests.harness.processes import Process
from tests.harness.servers import RedisCluster, RedisServer, free_port
from tests.harness.waiting import DEADLINE_S, ProcessError, wait_for

DEFAULTS = GatewaySettings()
LOADED_S = 300.0
"""Time limit for a worker to load vLLM."""
VLLM_SETTINGS: Mapping[str, Any] = {"served_model_name": MODEL, "engine_args": "--dtype float32"}
"""With float32 an answer does not depend on what else is in the batch. The demo model has the name
that the requests have."""
_ENGINE_SIGNAL = signal.SIGUSR1
"""Ends the simulated engine in a worker (its fault `die_on_signal`)."""
_PRELOAD = "load_tests.harness.preload"
_CONTROLS = "load_tests.faults.kills.controls"
_REWRITE = {"auto_aof_rewrite_min_size": "16mb"}
"""A small append-only file is read quickly at each restart."""
_CORE = b"VLLM::EngineCore"
"""Name of the child process in which a worker's vLLM computes."""
_LOADS_AFTER = {START_AFTER_S: "3"}
"""A replacement with vLLM would take the two cores from the worker that continues the streams; in a
real fleet it loads on a machine of its own."""
_SERVING = {json.dumps(state).encode() for state in (WorkerState.READY, WorkerState.BUSY)}


@dataclass(frozen=True, slots=True)
class FleetShape:
    """Numbers and settings of a fleet; where nothing is given, those of a plain `flotilla up`."""

    workers: int = 1
    gateways: int = 1
    step_ms: float = 25.0
    """The length of a simulated engine's step."""
    lease_s: float = DEFAULTS.lease_s
    max_attempts: int = DEFAULTS.max_attempts
    appendonly: bool = True
    appendfsync: str = appendfsync(durable=DEFAULTS.durable)
    vllm: bool = False
    """Real vLLM with the demo model instead of the simulated engine."""
    shards: int = 1
    """More than one: on a Redis Cluster with so many masters and a replica of each."""
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Other settings of Flotilla."""
    redis: Mapping[str, str] = field(default_factory=dict)
    """Other options of Redis, as RedisServer takes them."""
    controls: tuple[str, ...] = ()
    """Negative controls; see faults/kills/controls.py."""

    @property
    def engine(self) -> str:
        """What generates, in words."""
        return "vLLM, demo model, float32" if self.vllm else "simulated engine"

    @property
    def all_settings(self) -> dict[str, Any]:
        """The settings of its processes, beside the address of Redis."""
        settings = {
            "lease_s": self.lease_s,
            "max_attempts": self.max_attempts,
            "shards": self.shards,
            "log_level": "warning",
            "log_format": "json",
            "access_log": False,
            **self.settings,
        }
        if self.vllm:
            return {**settings, **VLLM_SETTINGS}
        timing = EngineTiming(step_ms=self.step_ms, step_us_per_seq=0, max_num_seqs=64)
        faults = f"die_on_signal={_ENGINE_SIGNAL.name}"
        return timing.settings(sim_faults=faults, **settings)


class Fleet:
    """Redis or a cluster of it, gateways and workers.

    A replacement takes its predecessor's index in the lists. The name of a worker's process is its
    id. What is done to a process does not wait until its replacement is ready; `wait_until_ready`
    does.
    """

    def __init__(self, folder: Path, shape: FleetShape) -> None:
        """Start the fleet and wait until it is ready. Raises ProcessError."""
        folder.mkdir(parents=True)
        self.shape = shape
        self.unexpected: list[str] = []
        """Processes that have ended by themselves, in words."""
        self.busy: set[int] = set()
        """Indexes of the workers that are stopped, or whose engine is dead."""
        self._n_started = 0
        self._engine_killed: set[int] = set()
        self._tokens = folder / "tokens"
        with contextlib.ExitStack() as at_the_end:
            self.redis_url, self.client = self._start_redis(folder / "redis", at_the_end)
            functions = [f"{_CONTROLS}:{name}" for name in shape.controls]
            first = "load_vllm" if shape.vllm else f"count_tokens:{self._tokens}"
            self._forks = ForkServer(folder, [*functions, f"{_PRELOAD}:{first}"])
            at_the_end.callback(self._forks.close)
            settings = shape.all_settings
            self.stack = Stack(self.redis_url, folder, settings=settings, fork=self._forks)
            self.ports = [free_port() for _ in range(shape.gateways)]
            """The gateways' ports."""
            self.gateways = [self._start_gateway(n) for n in range(shape.gateways)]
            self.workers = [self._start_worker() for _ in range(shape.workers)]
            self.wait_until_ready()
            self._at_the_end = at_the_end.pop_all()

    def _start_redis(self, folder: Path, at_the_end: contextlib.ExitStack) -> tuple[str, Any]:
        shape = self.shape
        options = {"appendfsync": shape.appendfsync, **_REWRITE, **shape.redis}
        if shape.shards > 1:
            self.cluster = RedisCluster(folder, shape.shards, replicas=True, options=options)
            at_the_end.callback(self.cluster.close)
            self.cluster.start()
            return self.cluster.url, self.cluster.client()
        self.redis = RedisServer(folder, appendonly="yes" if shape.appendonly else "no", **options)
        at_the_end.callback(self.redis.kill)
        self.redis.start()
        return self.redis.url, self.redis.client()

    @property
    def urls(self) -> list[str]:
        """The gateways' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def processes(self) -> list[Process]:
        """The processes that should run now."""
        return [*self.gateways, self.redis.process, *self.workers]

    def _start_worker(self, **how: Any) -> Process:
        """Start a worker that is not in `workers` yet; `how`: as in Stack.start."""
        self._n_started += 1
        worker_id = f"worker-{self._n_started}"
        return self.stack.start("worker", name=worker_id, worker_id=worker_id, worker_port=0, **how)

    def replace_worker(self, n: int) -> None:
        """Start a worker in the place of the n-th."""
        self.workers[n] = self._start_worker(variables=_LOADS_AFTER if self.shape.vllm else {})

    def replace_gateway(self, n: int) -> None:
        """Start a gateway on the port of the n-th, which must have ended."""
        self.gateways[n] = self._start_gateway(n)

    def kill_worker(self, n: int) -> None:
        """Kill a worker with SIGKILL; start a replacement."""
        self.workers[n].popen.kill()
        self.replace_worker(n)

    def kill_engine(self, n: int) -> None:
        """Kill the engine in a worker. `supervise` replaces the worker once it has ended."""
        worker = self.workers[n].popen
        self._engine_killed.add(worker.pid)
        self.busy.add(n)
        if self.shape.vllm:
            os.kill(_engine_core(worker.pid), signal.SIGKILL)
        else:
            worker.send_signal(_ENGINE_SIGNAL)

    def kill_gateway(self, n: int) -> None:
        """Kill a gateway with SIGKILL; start it again on its port."""
        self.gateways[n].kill()
        self.replace_gateway(n)

    def kill_redis(self, down_s: float = 0.0) -> None:
        """Kill Redis with SIGKILL; start it again after `down_s`, and wait until it answers."""
        self.redis.kill()
        time.sleep(down_s)
        self.redis.start()

    def since_renewal_s(self, n: int) -> float:
        """Return the seconds since the n-th worker's last heartbeat."""
        until: Any = self.client.zscore(keys.of("workers", 0), self.workers[n].name)
        seconds, micros = self.client.time()
        now_s = int(seconds) + int(micros) / 1e6
        return max(0.0, self.shape.lease_s - (float(until or 0) / 1e6 - now_s))

    def all_serve(self) -> bool:
        """Return whether all workers are registered and take jobs; False without Redis."""
        if self.busy:
            return False
        pipe = self.client.pipeline(transaction=False)
        for worker in self.workers:
            pipe.hget(keys.fleet("worker", worker.name), "state")
        try:
            return _SERVING.issuperset(pipe.execute())
        except (RedisError, OSError):
            return False

    def wait_until_ready(self) -> None:
        """Wait until gateways and workers are ready. Raises ProcessError."""
        for gateway in self.gateways:
            wait_for(gateway.ready, f"{gateway.name} is ready", processes=[gateway])
        deadline_s = LOADED_S if self.shape.vllm else DEADLINE_S
        wait_for(self.all_serve, "all workers serve", deadline_s, self.workers)

    def supervise(self) -> None:
        """Replace the workers and gateways that have ended; note those that were not killed."""
        self._forks.poll()
        for n, worker in enumerate(self.workers):
            if worker.popen.returncode is None:
                continue
            if worker.popen.pid in self._engine_killed:
                self._engine_killed.discard(worker.popen.pid)
                self.busy.discard(n)
            else:
                self.note_end(worker)
            self.replace_worker(n)
        for n, gateway in enumerate(self.gateways):
            if gateway.popen.returncode not in (None, -signal.SIGKILL):
                self.note_end(gateway)
                self.replace_gateway(n)

    def note_end(self, process: Process) -> None:
        """Note that a process has ended by itself."""
        status = process.popen.returncode
        self.unexpected.append(f"{process.name} ended with {status}:\n{process.tail()}")

    def generated_tokens(self) -> int:
        """Return how many tokens the simulated engines of all workers have generated."""
        return 0 if self.shape.vllm else generated_tokens(self._tokens)

    def close(self) -> None:
        """End all processes; their data is not needed any more."""
        self._at_the_end.close()

    def _start_gateway(self, n: int) -> Process:
        name, port = f"gateway-{n + 1}", self.ports[n]
        return self.stack.gateway(wait=False, name=name, port=port)


def _engine_core(worker: int) -> int:
    """Return the engine process of a worker. Raises ProcessError if it has none."""
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if _CORE in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    raise ProcessError(f"process {worker} has no {_CORE.decode()}")

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
from load_tests.harness.errors import ProcessError
from load_tests.harness.fork_server import COUNT_TOKENS, START_AFTER_S, VLLM
from load_tests.harness.forked_popen import ForkedProcesses
from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import READY_S, Process, Processes, wait_for
from load_tests.harness.redis_cluster import LoadedCluster
from load_tests.harness.redis_server import RedisServer
from load_tests.systems.engine import MODEL, EngineTiming
from shared.job.states import WorkerState
from shared.platform.settings import to_environment
from shared.store.redis import keys

DEFAULTS = GatewaySettings()
LOADED_S = 300.0
"""Time limit for a worker to load vLLM."""
VLLM_SETTINGS: Mapping[str, Any] = {"served_model_name": MODEL, "engine_args": "--dtype float32"}
"""With float32 an answer does not depend on what else is in the batch. The demo model has the name
that the requests have."""
_ENGINE_SIGNAL = signal.SIGUSR1
"""Ends the simulated engine in a worker (its fault `die_on_signal`)."""
_END_S = 40.0
"""More than the 30 s that a worker has to drain."""
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
    descriptors: int | None = None
    """The gateways' limit of open files."""
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
    def lost_after_s(self) -> float:
        """Seconds after which a worker that stands still loses its jobs."""
        return min(self.lease_s, DEFAULTS.silence_s)

    def environment(self, redis_url: str) -> dict[str, str]:
        """Return the environment variables of its processes."""
        settings = {
            "redis_url": redis_url,
            "lease_s": self.lease_s,
            "max_attempts": self.max_attempts,
            "shards": self.shards,
            "log_level": "warning",
            "log_format": "json",
            "access_log": False,
            **self.settings,
        }
        if self.vllm:
            return to_environment("", **settings, **VLLM_SETTINGS)
        timing = EngineTiming(step_ms=self.step_ms, step_us_per_seq=0, max_num_seqs=64)
        faults = f"die_on_signal={_ENGINE_SIGNAL.name}"
        return timing.environment(sim_faults=faults, **settings)


class Fleet:
    """Redis or a cluster of it, gateways and workers.

    A replacement takes its predecessor's index in the lists. The label of a worker's process is its
    id. What is done to a process does not wait until its replacement is ready; `wait_until_ready`
    does.
    """

    def __init__(self, folder: Path, shape: FleetShape) -> None:
        """Start the fleet and wait until it is ready. Raises ProcessError."""
        folder.mkdir(parents=True)
        self.shape = shape
        self.notes: list[str] = []
        """Remarks of faults, printed below their table."""
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
            self._start_redis()
            option = VLLM if shape.vllm else COUNT_TOKENS
            self._forked = ForkedProcesses(folder, [*shape.controls, option])
            self.ports = [free_port() for _ in range(shape.gateways)]
            """The gateways' ports."""
            self.gateways = [self._start_gateway(n) for n in range(shape.gateways)]
            self.workers = [self.start_worker() for _ in range(shape.workers)]
            self.wait_until_ready()
        except BaseException:
            self.close()
            raise

    def _start_redis(self) -> None:
        folder, shape = self._folder / "redis", self.shape
        options = {"appendfsync": shape.appendfsync, **_REWRITE, **shape.redis}
        if shape.shards > 1:
            self.cluster = LoadedCluster(
                self._processes, folder, shape.shards, replicas=True, **options
            )
            self.redis_url, self.client = self.cluster.url, self.cluster.client
        else:
            self.redis = RedisServer(
                self._processes, free_port(), folder, appendonly=shape.appendonly, **options
            )
            self.redis_url, self.client = self.redis.url, self.redis.client
        self._environment = shape.environment(self.redis_url)

    @property
    def urls(self) -> list[str]:
        """The gateways' addresses."""
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def processes(self) -> list[Process]:
        """The processes that should run now."""
        return [*self.gateways, self.redis.process, *self.workers]

    def start_worker(self, worker_id: str = "", **more: str) -> Process:
        """Start a worker that is not in `workers` yet; `more`: further variables."""
        self._n_started += 1
        worker_id = worker_id or f"worker-{self._n_started}"
        variables = {"FLOTILLA_WORKER_ID": worker_id, "FLOTILLA_WORKER_PORT": "0", **more}
        return self._start("worker", worker_id, "engine", variables)

    def replace_worker(self, n: int) -> None:
        """Start a worker in the place of the n-th."""
        self.workers[n] = self.start_worker(**(_LOADS_AFTER if self.shape.vllm else {}))

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
        self.gateways[n].popen.kill()
        self.gateways[n].popen.wait(_END_S)
        self.replace_gateway(n)

    def kill_redis(self, down_s: float = 0.0) -> None:
        """Kill Redis with SIGKILL; start it again after `down_s`, and wait until it answers."""
        self.redis.kill()
        time.sleep(down_s)
        self.redis.start()

    def pause(self, process: Process, seconds: float) -> None:
        """Stop a process with SIGSTOP for some seconds."""
        process.popen.send_signal(signal.SIGSTOP)
        time.sleep(seconds)
        process.popen.send_signal(signal.SIGCONT)

    def end(self, process: Process) -> None:
        """Send SIGTERM and wait for the end."""
        process.popen.terminate()
        process.popen.wait(_END_S)

    def since_renewal_s(self, n: int) -> float:
        """Return the seconds since the n-th worker renewed its leases.

        They are computed from the TTL of its fence key, which is one lease long when renewed.
        """
        left_ms: Any = self.client.pttl(keys.fence(0, self.workers[n].label))
        return self.shape.lease_s - max(0, int(left_ms)) / 1e3

    def all_serve(self) -> bool:
        """Return whether all workers run and have loaded their model; False without Redis."""
        return not self.busy and self.serve(self.workers)

    def serve(self, workers: list[Process]) -> bool:
        """Return whether these workers are registered and take jobs; False without Redis."""
        pipe = self.client.pipeline(transaction=False)
        for worker in workers:
            pipe.hget(keys.worker(worker.label), "state")
        try:
            return _SERVING.issuperset(pipe.execute())
        except (RedisError, OSError):
            return False

    def wait_until_ready(self, *more: Process) -> None:
        """Wait until gateways, workers and `more` workers are ready. Raises ProcessError."""
        for port, process in zip(self.ports, self.gateways, strict=True):
            wait_for(lambda port=port: responds_ok(port, "/readyz"), process.label, [process])  # type: ignore[misc]
        workers = [*self.workers, *more]
        deadline_s = LOADED_S if self.shape.vllm else READY_S
        wait_for(lambda: self.serve(workers), "all workers serve", workers, deadline_s)

    def supervise(self) -> None:
        """Replace the workers and gateways that have ended; note those that were not killed."""
        self.forked.poll()
        for n, worker in enumerate(self.workers):
            status = self.forked.ended.get(worker.popen.pid)
            if status is None:
                continue
            if worker.popen.pid in self._engine_killed:
                self._engine_killed.discard(worker.popen.pid)
                self.busy.discard(n)
            else:
                self._note_end(worker, status)
            self.replace_worker(n)
        for n, gateway in enumerate(self.gateways):
            status = self.forked.ended.get(gateway.popen.pid)
            if status is not None and status != -signal.SIGKILL:
                self._note_end(gateway, status)
                self.replace_gateway(n)

    @property
    def forked(self) -> ForkedProcesses:
        """The processes that are not Redis."""
        assert self._forked is not None, "closed"
        return self._forked

    def close(self) -> None:
        """End all processes; their data is not needed any more."""
        if self._forked is not None:
            self._forked.close()
        self._processes.close()

    def _note_end(self, process: Process, status: int) -> None:
        self.unexpected.append(f"{process.label} ended with {status}:\n{process.tail()}")

    def _start_gateway(self, n: int) -> Process:
        variables = {"FLOTILLA_PORT": str(self.ports[n])}
        return self._start("gateway", f"gateway-{n + 1}", "front", variables)

    def _start(self, main: str, label: str, role: Any, variables: Mapping[str, str]) -> Process:
        log = self._folder / f"{label}.log"
        descriptors = self.shape.descriptors if main == "gateway" else None
        popen = self.forked.start(main, log, {**self._environment, **variables}, descriptors)
        return Process(label, role, popen, log)


def _engine_core(worker: int) -> int:
    """Return the engine process of a worker. Raises ProcessError if it has none."""
    with contextlib.suppress(FileNotFoundError):
        for child in Path(f"/proc/{worker}/task/{worker}/children").read_text().split():
            with contextlib.suppress(FileNotFoundError):
                if _CORE in Path(f"/proc/{child}/cmdline").read_bytes():
                    return int(child)
    raise ProcessError(f"process {worker} has no {_CORE.decode()}")

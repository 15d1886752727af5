"""Real vLLM with the demo model, behind its own server and behind Flotilla; the same engine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from load_tests.systems.engine import PACED, EngineTiming
from load_tests.systems.system import System
from shared.fleet.pool import DEMO_MODEL
from shared.platform.settings import to_environment
from tests.harness.fleet import Stack
from tests.harness.processes import metric, python_command
from tests.harness.servers import free_port
from worker.demo import MODEL_DIR
from worker.engines.vllm.args import DEFAULTS, DEMO_ARGS, DEMO_DEFAULTS

_LOADED_S = 300.0
_GENERATED = "vllm:generation_tokens_total"
_ENGINE = DEFAULTS | DEMO_DEFAULTS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The same environment variables that the worker sets: one process for engine and server."""


class VllmServe(System):
    """`vllm serve`."""

    name = "vllm"
    model: ClassVar[str] = ""
    """Folder of the model; empty: the demo model, with its options."""
    engine_args: ClassVar[str] = ""
    """Further options of vLLM."""
    least_events = 4
    """The role, a first and a last chunk, `[DONE]`: vLLM merges tokens that wait to be sent."""
    body_fields: ClassVar[dict[str, Any]] = {"model": DEMO_MODEL, "temperature": 0}
    timeout_s = 300.0
    metrics_port: int
    """Serves vLLM's metrics."""

    def __init__(self, processes: Stack) -> None:
        super().__init__(processes, PACED)  # the timing is the simulated engine's: unused

    def start(self) -> None:
        """Start `vllm serve`."""
        port = self.metrics_port = free_port()
        options = f"--served-model-name {DEMO_MODEL} --host 127.0.0.1 --port {port}"
        # As in a worker: what is given last counts.
        options += f" --disable-uvicorn-access-log {'' if self.model else DEMO_ARGS}"
        options += f" {self.engine_args}"
        model = self.model or MODEL_DIR
        command = python_command("tests.harness.vllm_cli", "serve", model, *options.split())
        environment = to_environment("") | _ENGINE
        self.ports = [port]
        self.start_program("vllm", command, port, _LOADED_S, environment)

    def generated(self) -> float:
        """Return the number of tokens generated so far, as vLLM's metrics count them."""
        return metric(f"http://127.0.0.1:{self.metrics_port}", _GENERATED)


class VllmFleet(VllmServe):
    """A gateway, a durable Redis, one worker with vLLM."""

    name = "fleet"
    settings: ClassVar[Mapping[str, Any]] = {}
    """Others of gateway and worker."""

    def start(self) -> None:
        """Start Redis, the worker, the gateway."""
        common: dict[str, Any] = {"redis_url": self.start_redis().url, **self.settings}
        if self.model:
            common |= {"model": self.model, "served_model_name": DEMO_MODEL}
        self.metrics_port = free_port()
        worker: dict[str, Any] = {
            "engine": None,
            "worker_port": self.metrics_port,
            "engine_args": self.engine_args,
        }
        self.stack.worker(ready_s=_LOADED_S, **common, **worker)
        self.start_gateway(**common)

    def engine_settings(self, timing: EngineTiming) -> dict[str, Any]:
        """Return none: all others are the defaults."""
        return {}


VLLM_SYSTEMS: dict[str, type[VllmServe]] = {
    system.name: system
    for system in (
        VllmServe,
        VllmFleet,
    )
}

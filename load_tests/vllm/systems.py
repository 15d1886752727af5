"""Real vLLM with the demo model, behind its own server and behind Flotilla; the same engine."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

from load_tests.harness.http import free_port, get, metric_sum, post_json, responds_ok
from load_tests.harness.processes import Processes, python_command, wait_for
from load_tests.systems.engine import PACED
from load_tests.systems.system import System
from shared.platform.settings import Settings, to_environment
from worker.demo import MODEL_DIR, MODEL_NAME
from worker.engines.vllm.engine import DEFAULTS, DEMO_ARGS, DEMO_DEFAULTS

LOADED_S = 300.0
_GENERATED = "vllm:generation_tokens_total"
_ENGINE = DEFAULTS | DEMO_DEFAULTS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The same environment variables that the worker sets: one process for engine and server."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve the model."""

    name: str
    fleet: bool
    """Behind Flotilla; otherwise `vllm serve`."""
    engine_args: str = ""
    """vLLM options besides the demo model's."""
    fast_paths: str = "auto"
    """FLOTILLA_FAST_PATHS of the fleet's processes."""
    api_keys: str = ""
    """FLOTILLA_API_KEYS of the fleet's gateway."""

    def start(self, processes: Processes) -> VllmSystem:
        """Start it and wait until it is ready. Raises ProcessError."""
        system = (VllmFleet if self.fleet else VllmServe)(processes, self)
        system.start()
        return system


VARIANTS = {
    variant.name: variant
    for variant in (
        Variant("vllm", fleet=False),
        Variant("fleet", fleet=True),
        Variant("fleet-plain", fleet=True, fast_paths="off"),
        Variant("vllm-8", fleet=False, engine_args="--stream-interval 8"),
        Variant("fleet-8", fleet=True, engine_args="--stream-interval 8"),
    )
}
"""`-8`: a chunk for every eighth token, which contains eight tokens."""


class VllmSystem(System):
    """A system with vLLM; `metrics_port` serves vLLM's metrics."""

    metrics_port: int

    def __init__(self, processes: Processes, variant: Variant) -> None:
        super().__init__(processes, PACED)  # the timing is the simulated engine's: unused
        self.variant = variant

    @abstractmethod
    def start(self) -> None:
        """Start the processes and wait until they are ready. Raises ProcessError."""

    def flotilla_environment(self, **settings: Any) -> dict[str, str]:
        """Return the environment of a Flotilla process: all other settings are the defaults."""
        return to_environment(Settings(), **settings)

    def generated(self) -> float:
        """Return the number of tokens generated so far, as vLLM's metrics count them."""
        return metric_sum(get(self.metrics_port, "/metrics")[1], _GENERATED)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the decoded answer."""
        answer: dict[str, Any] = json.loads(post_json(self.ports[0], self.path, body)[1])
        return answer


class VllmServe(VllmSystem):
    """`vllm serve`."""

    name = "vllm"

    def start(self) -> None:
        """Start `vllm serve`."""
        port = self.metrics_port = free_port()
        options = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {port}"
        options += f" --disable-uvicorn-access-log {DEMO_ARGS} {self.variant.engine_args}"
        command = python_command("worker.engines.vllm.cli", "serve", MODEL_DIR, *options.split())
        environment = to_environment(Settings()) | _ENGINE
        self.ports = [port]
        process = self._processes.start("vllm", "engine", command, environment)
        self.processes.append(process)
        wait_for(lambda: responds_ok(port, "/health"), "vLLM is ready", [process], LOADED_S)


class VllmFleet(VllmSystem):
    """A gateway, a durable Redis, one worker with vLLM."""

    name = "fleet"

    def start(self) -> None:
        """Start Redis, the worker, the gateway."""
        variant, redis_url = self.variant, self.start_redis().url
        port = self.metrics_port = free_port()
        self.start_flotilla(
            "worker",
            "worker",
            "engine",
            port,
            LOADED_S,
            redis_url=redis_url,
            worker_port=port,
            engine_args=variant.engine_args,
            fast_paths=variant.fast_paths,
        )
        port = free_port()
        self.start_flotilla(
            "gateway",
            "gateway",
            "front",
            port,
            redis_url=redis_url,
            port=port,
            api_keys=variant.api_keys,
        )
        self.ports = [port]

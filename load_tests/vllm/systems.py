"""Real vLLM with the demo model: its own server, and behind Flotilla. The same engine in both."""

from __future__ import annotations

import json
from abc import abstractmethod
from dataclasses import dataclass
from http.client import HTTPConnection
from typing import Any

from load_tests.harness.processes import Processes, Role, answers, python, wait_for
from load_tests.systems.engine import PACED
from load_tests.systems.system import System, free_port
from shared.platform.settings import Settings, to_environment
from worker.demo import MODEL_DIR, MODEL_NAME
from worker.engines.vllm.engine import DEFAULTS, DEMO_ARGS, DEMO_DEFAULTS

LOADED_S = 300.0
_GENERATED = "vllm:generation_tokens_total"
_ENGINE = DEFAULTS | DEMO_DEFAULTS | {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""The worker sets the same for itself: with one device, one process for the engine."""


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to serve the model."""

    name: str
    fleet: bool
    engine_args: str = ""
    """vLLM's, on top of the demo model's own."""
    fast_paths: str = "auto"
    """FLOTILLA_FAST_PATHS of a fleet's processes."""

    def start(self, processes: Processes) -> VllmSystem:
        """Returns when it answers. Raises ProcessError."""
        system = (Fleet if self.fleet else Serve)(processes, self)
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
"""`-8` sends every eighth token only, with the seven before it."""


class VllmSystem(System):
    """Has vLLM's own metrics somewhere."""

    metrics_port: int

    def __init__(self, processes: Processes, variant: Variant) -> None:
        super().__init__(processes, PACED)  # of no meaning here: this engine is as fast as it is
        self.variant = variant

    @abstractmethod
    def start(self) -> None: ...

    def generated(self) -> float:
        """Tokens that the engine has generated so far, as it says itself."""
        text = _get(self.metrics_port, "/metrics").splitlines()
        return sum(float(line.split()[-1]) for line in text if line.startswith(_GENERATED))

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        """The answer to a request."""
        connection = HTTPConnection("127.0.0.1", self.ports[0], timeout=60)
        try:
            headers = {"content-type": "application/json"}
            connection.request("POST", self.path, json.dumps(body), headers)
            answer: dict[str, Any] = json.loads(connection.getresponse().read())
            return answer
        finally:
            connection.close()


class Serve(VllmSystem):
    """`vllm serve`."""

    name = "vllm"

    def start(self) -> None:
        port = self.metrics_port = free_port()
        options = f"--served-model-name {MODEL_NAME} --host 127.0.0.1 --port {port}"
        options += f" --disable-uvicorn-access-log {DEMO_ARGS} {self.variant.engine_args}"
        command = python("load_tests.vllm.vllm_cli", "serve", MODEL_DIR, *options.split())
        environment = to_environment(Settings()) | _ENGINE
        self.ports = [port]
        process = self._processes.start("vllm", "engine", command, environment)
        self.processes.append(process)
        wait_for(lambda: answers(port, "/health"), "vLLM is ready", [process], LOADED_S)


class Fleet(VllmSystem):
    """Gateway, durable Redis, one worker."""

    name = "fleet"

    def start(self) -> None:
        variant, redis_url = self.variant, self.start_redis().url
        port = self.metrics_port = free_port()
        self._start(
            "worker",
            "engine",
            port,
            redis_url=redis_url,
            worker_port=port,
            engine_args=variant.engine_args,
            fast_paths=variant.fast_paths,
        )
        port = free_port()
        self._start("gateway", "front", port, redis_url=redis_url, port=port)
        self.ports = [port]

    def _start(self, module: str, role: Role, at: int, **settings: Any) -> None:
        environment = to_environment(Settings(), **settings)
        process = self._processes.start(module, role, python(module), environment)
        self.processes.append(process)
        wait_for(lambda: answers(at, "/readyz"), f"the {module} is ready", [process], LOADED_S)


def _get(port: int, path: str) -> str:
    connection = HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()

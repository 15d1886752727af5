"""One fleet for all tests of this folder: Redis, a gateway, and a worker with real vLLM for each
model that a test asks for. The models are made on the spot.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.harness.client import http
from tests.harness.collector import Collector
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.settings import ROOT
from tests.harness.vllm_process import start_engine
from tests.harness.waiting import wait_for

_MADE_S = 600
_LEASE_S = 15.0
"""vLLM may stop a worker's event loop for seconds where machines are busy."""
_DEMO_ARGS = "--dtype float32 --kv-cache-memory-bytes 256M"
"""With float32 an answer does not depend on what else is in the batch. A fleet keeps an engine for
each model."""
ENGINE_ARGS = f"{_DEMO_ARGS} --enforce-eager --max-num-seqs 16"
_MODELS: dict[str, tuple[str, str]] = {
    # Name: the arguments of vLLM, and the folder of the model; none: the demo model.
    "demo": (_DEMO_ARGS, ""),
    "one-slot": (f"{_DEMO_ARGS} --max-num-seqs 1", ""),
    "embedder": (f"{ENGINE_ARGS} --runner pooling --convert embed", "embedder"),
    "classifier": (f"{ENGINE_ARGS} --runner pooling", "classifier"),
    "reranker": (f"{ENGINE_ARGS} --runner pooling", "reranker"),
    "whisper": (ENGINE_ARGS, "whisper"),
}


@dataclass(frozen=True)
class ServedModel:
    """A model that a worker of the fleet serves."""

    name: str
    gateway_url: str
    direct_url: str
    """vLLM's own application on the same engine."""
    worker: Process


@dataclass
class ModelFleet:
    """A gateway, and a worker for each model that was asked for."""

    stack: Stack
    folder: Path
    """Of the models."""
    gateway: Process
    collector: Collector
    """Of the spans of requests whose client wants them traced."""
    _served: dict[str, ServedModel] = field(default_factory=dict)

    def serve(self, name: str) -> ServedModel:
        """One of the models above; the first call starts its worker."""
        engine_args, folder = _MODELS[name]
        return self.start(name, engine_args, str(self.folder / folder) if folder else "")

    def start(self, name: str, engine_args: str, model: str, **settings: Any) -> ServedModel:
        """Any model, once it is ready; `settings` are the worker's."""
        if name not in self._served:
            worker, direct_url = start_engine(
                self.stack,
                model=model,
                served_model_name=name,
                engine_args=engine_args,
                lease_s=_LEASE_S,
                otlp_traces_endpoint=self.collector.url,
                **settings,
            )
            wait_for(lambda: name in self._known(), f"{name} is known")
            self._served[name] = ServedModel(name, self.gateway.url, direct_url, worker)
        return self._served[name]

    def _known(self) -> list[str]:
        models = http.get(f"{self.gateway.url}/v1/models").json()["data"]
        return [model["id"] for model in models]


@pytest.fixture(scope="session")
def models_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The models that tests/harness/models/made.py makes, each in a folder."""
    folder = tmp_path_factory.mktemp("models")
    command = [sys.executable, "-m", "tests.harness.models.made", str(folder)]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=_MADE_S, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


@pytest.fixture(scope="session")
def fleet(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ModelFleet]:
    """The fleet; it has no worker yet."""
    redis = RedisServer(tmp_path_factory.mktemp("models-redis"))
    redis.start()
    stack = Stack(redis.url, tmp_path_factory.mktemp("models-fleet"))
    with pytest.MonkeyPatch.context() as patch, Collector() as collector:
        patch.setenv("HF_HUB_OFFLINE", "1")
        gateway = stack.gateway(
            default_model="demo",
            lease_s=_LEASE_S,
            allow_fields="*",
            otlp_traces_endpoint=collector.url,
            trace_ratio=0,
        )
        yield ModelFleet(stack, models_folder, gateway, collector)
        stack.close()
    redis.stop()


@pytest.fixture(scope="session")
def demo(fleet: ModelFleet) -> ServedModel:
    """The demo model: generates text."""
    return fleet.serve("demo")


@pytest.fixture(scope="session")
def embedder(fleet: ModelFleet) -> ServedModel:
    """A Llama that embeds."""
    return fleet.serve("embedder")


@pytest.fixture(scope="session")
def classifier(fleet: ModelFleet) -> ServedModel:
    """A Llama with three classes."""
    return fleet.serve("classifier")


@pytest.fixture(scope="session")
def reranker(fleet: ModelFleet) -> ServedModel:
    """A cross-encoder."""
    return fleet.serve("reranker")


@pytest.fixture(scope="session")
def whisper(fleet: ModelFleet) -> ServedModel:
    """A model for speech to text."""
    return fleet.serve("whisper")


_FLEETS_OF_THEIR_OWN = (
    "first_contact", "flotilla_yaml", "killed_workers", "local_batch", "middleware",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that start engines of their own come first: those of the folder keep their memory."""
    own = tuple(f"tests/vllm/test_{name}.py" for name in _FLEETS_OF_THEIR_OWN)
    items.sort(key=lambda item: not item.nodeid.startswith(own))

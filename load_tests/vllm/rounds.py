"""Measurements of real vLLM: by our load client, and by vLLM's own benchmark as a cross-check."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from load_tests.bench import rounds as bench
from load_tests.bench.measurement import Measurement
from load_tests.bench.points import Point
from load_tests.harness.errors import WrongAnswerError
from load_tests.systems.engine import request_body
from load_tests.vllm.systems import VllmServe
from tests.harness.client import http
from tests.harness.processes import python_command
from tests.harness.servers import free_port
from worker.demo import MODEL_DIR, MODEL_NAME

POINTS = {
    point.name: point
    for point in (
        Point("c1", 1, 40, 16),
        Point("c32", 32, 192, 64),
        Point("c64", 64, 384, 64),
        # For a GPU: answers of 256 tokens.
        Point("l1", 1, 4, 256),
        Point("l64", 64, 256, 256),
        Point("l256", 256, 768, 256),
        Point("l512", 512, 1024, 256),
    )
}
DEFAULT_POINTS = "c1,c32,c64"
_TIMEOUT_S = 300.0
_INPUT_TOKENS = 64


@dataclass(frozen=True, slots=True)
class BenchServeResult:
    """What `vllm bench serve` measured of one system in one round."""

    system: str
    round: int
    tokens_per_s: float
    ttft_p50_ms: float
    itl_p50_ms: float


def run_point(system: VllmServe, point: Point, round_index: int) -> Measurement:
    """Run a point's load; measure the CPU time of the system's processes meanwhile.

    Raises WrongAnswerError, also if vLLM generated another number of tokens than clients received.
    """
    before = system.generated()
    measurement = bench.run_point(system, point, round_index)
    generated, received = system.generated() - before, measurement.client.tokens
    if generated != received:
        raise WrongAnswerError(
            f"{system.name} generated {generated:.0f} tokens, clients received {received}"
        )
    return measurement


def check_answers(systems: Sequence[VllmServe]) -> None:
    """Compare the systems' answers to one request. Raises WrongAnswerError if they differ."""
    texts = {}
    for system in systems:
        body = request_body(tokens=48, stream=False) | system.body_fields
        answer = http.post(f"http://127.0.0.1:{system.ports[0]}{system.path}", json=body).json()
        if "choices" not in answer:
            raise WrongAnswerError(f"{system.name}: {answer}")
        texts[system.name] = answer["choices"][0]["message"]["content"]
    if len(set(texts.values())) > 1:
        raise WrongAnswerError(f"answers differ: {texts}")


def run_bench_serve(system: VllmServe, point: Point, round_index: int) -> BenchServeResult:
    """Run `vllm bench serve` with random prompts. Raises WrongAnswerError if it fails."""
    result = system.folder / f"bench-serve-{free_port()}.json"
    options = {
        "backend": "openai-chat",
        "base-url": f"http://127.0.0.1:{system.ports[0]}",
        "endpoint": system.path,
        "model": MODEL_NAME,
        "tokenizer": system.model or MODEL_DIR,
        "dataset-name": "random",
        "random-input-len": _INPUT_TOKENS,
        "random-output-len": point.tokens,
        "num-prompts": point.requests,
        "max-concurrency": point.connections,
        "seed": round_index,
        "temperature": 0,
        "result-dir": result.parent,
        "result-filename": result.name,
    }
    command = python_command(
        "worker.engines.vllm.cli", "bench", "serve", "--ignore-eos", "--save-result"
    )
    for name, value in options.items():
        command += [f"--{name}", str(value)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if process.returncode or not result.exists():
        raise WrongAnswerError(
            f"vllm bench serve failed:\n{(process.stderr or process.stdout)[-2000:]}"
        )
    return parse_bench_serve(system.name, round_index, point, result)


def parse_bench_serve(system: str, round_index: int, point: Point, path: Path) -> BenchServeResult:
    """Read the result file of `vllm bench serve`.

    Raises WrongAnswerError if a request was not answered.
    """
    found = json.loads(path.read_text())
    if found["completed"] != point.requests:
        raise WrongAnswerError(
            f"{system}: {found['completed']} of {point.requests} requests answered"
        )
    return BenchServeResult(
        system,
        round_index,
        tokens_per_s=found["output_throughput"],
        ttft_p50_ms=found["median_ttft_ms"],
        itl_p50_ms=found["median_itl_ms"],
    )

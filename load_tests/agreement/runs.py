"""One run of either benchmark with the same load and prompts. Both write a result as vLLM's."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gateway.bench.prompts import random_prompts
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.processes import python_command
from load_tests.systems.system import System
from worker.demo import MODEL_DIR

_TIMEOUT_S = 600.0
_FLOTILLA = [sys.executable, "-c", "from gateway.cli.main import main; main()"]


@dataclass(frozen=True, slots=True)
class Setup:
    """The load of a run."""

    num_prompts: int
    max_concurrency: int | None
    rate: float | None
    words: int
    """Of each prompt."""
    output_tokens: int

    def options(self) -> list[str]:
        """What both programs call the same; ours knows vLLM's `--request-rate`."""
        found = ["--num-prompts", str(self.num_prompts)]
        if self.max_concurrency is not None:
            found += ["--max-concurrency", str(self.max_concurrency)]
        if self.rate is not None:
            found += ["--request-rate", str(self.rate)]
        return [*found, "--ignore-eos"]


def run_flotilla(system: System, model: str, setup: Setup, seed: int) -> dict[str, Any]:
    """The result of `flotilla bench`. Raises WrongAnswerError."""
    prompts, result = _files(system, setup, seed, "flotilla")
    command = [*_FLOTILLA, "bench", "--url", _url(system), "-m", model, *setup.options()]
    command += ["--dataset-path", str(prompts), "--seed", str(seed), "--save", str(result)]
    command += ["--extra-body", '{"temperature": 0}']
    return _run(command, result, setup)


def run_vllm(system: System, model: str, setup: Setup, seed: int) -> dict[str, Any]:
    """The result of `vllm bench serve`. Raises WrongAnswerError."""
    prompts, result = _files(system, setup, seed, "vllm")
    command = python_command("load_tests.vllm.vllm_cli", "bench", "serve", *setup.options())
    command += ["--backend", "openai-chat", "--endpoint", system.path, "--base-url", _url(system)]
    command += ["--model", model, "--tokenizer", str(MODEL_DIR), "--temperature", "0"]
    command += ["--dataset-name", "custom", "--dataset-path", str(prompts), "--disable-shuffle"]
    command += ["--skip-chat-template", "--custom-output-len", str(setup.output_tokens)]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el", "--seed", str(seed)]
    command += ["--save-result", "--result-dir", str(result.parent)]
    return _run([*command, "--result-filename", result.name], result, setup)


PROGRAMS: dict[str, Callable[[System, str, Setup, int], dict[str, Any]]] = {
    "vllm bench serve": run_vllm,
    "flotilla bench": run_flotilla,
}


def _url(system: System) -> str:
    return f"http://127.0.0.1:{system.ports[0]}"


def _files(system: System, setup: Setup, seed: int, program: str) -> tuple[Path, Path]:
    """The prompts, written now, and the file for the result."""
    prompts = system.folder / f"prompts-{seed}.jsonl"
    lines = [
        json.dumps({"prompt": prompt.text, "output_tokens": prompt.output_tokens})
        for prompt in islice(
            random_prompts(setup.words, setup.output_tokens, seed), setup.num_prompts
        )
    ]
    prompts.write_text("\n".join(lines) + "\n")
    return prompts, system.folder / f"{program}-{seed}.json"


def _run(command: list[str], result: Path, setup: Setup) -> dict[str, Any]:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=_TIMEOUT_S
    )
    if done.returncode or not result.exists():
        raise WrongAnswerError(f"{' '.join(command)}:\n{(done.stderr or done.stdout)[-2000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    if found["completed"] != setup.num_prompts:
        raise WrongAnswerError(f"{found['completed']} of {setup.num_prompts} requests answered")
    return found

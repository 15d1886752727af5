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

from gateway.bench.prompts import Prompt, random_prompts
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

    def prompts(self, seed: int) -> list[Prompt]:
        """The same for either program."""
        return list(islice(random_prompts(self.words, self.output_tokens, seed), self.num_prompts))

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
    prompts, result = system.folder / f"{seed}.jsonl", system.folder / f"flotilla-{seed}.json"
    lines = [
        json.dumps({"prompt": prompt.text, "output_tokens": prompt.output_tokens})
        for prompt in setup.prompts(seed)
    ]
    prompts.write_text("\n".join(lines) + "\n")
    command = [*_FLOTILLA, "bench", "--url", _url(system), "-m", model, *setup.options()]
    command += ["--dataset-path", str(prompts), "--seed", str(seed), "--save", str(result)]
    command += ["--extra-body", '{"temperature": 0}']
    return _run(command, result, setup)


def run_vllm(system: System, model: str, setup: Setup, seed: int) -> dict[str, Any]:
    """The result of `vllm bench serve`. Raises WrongAnswerError."""
    prompts, result = system.folder / f"sharegpt-{seed}.json", system.folder / f"vllm-{seed}.json"
    # Its dataset of JSONL files needs pandas; this one sends the same texts.
    entries = [
        {"conversations": [{"value": prompt.text}, {"value": ""}]} for prompt in setup.prompts(seed)
    ]
    prompts.write_text(json.dumps(entries))
    command = python_command("load_tests.vllm.vllm_cli", "bench", "serve", *setup.options())
    command += ["--backend", "openai-chat", "--endpoint", system.path, "--base-url", _url(system)]
    command += ["--model", model, "--tokenizer", str(MODEL_DIR), "--temperature", "0"]
    command += ["--dataset-name", "sharegpt", "--dataset-path", str(prompts), "--disable-shuffle"]
    command += ["--sharegpt-output-len", str(setup.output_tokens), "--seed", str(seed)]
    command += ["--percentile-metrics", "ttft,tpot,itl,e2el"]
    command += ["--save-result", "--result-dir", str(result.parent)]
    return _run([*command, "--result-filename", result.name], result, setup)


PROGRAMS: dict[str, Callable[[System, str, Setup, int], dict[str, Any]]] = {
    "vllm bench serve": run_vllm,
    "flotilla bench": run_flotilla,
}


def _url(system: System) -> str:
    return f"http://127.0.0.1:{system.ports[0]}"


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

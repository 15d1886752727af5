"""`make test-clients`: unmodified client libraries on a running fleet.

Installs the libraries below .cache/clients, starts a gateway and workers (or uses --url), runs
each script, and prints a table. Ends with 1 if a check has failed.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import venv
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

HERE = Path(__file__).parent
CACHE = HERE.parent.parent / ".cache" / "clients"
NODE = CACHE / "node_modules" / ".bin" / "node"
"""Of the npm package `node`: OpenAI's library needs 22, and npm takes an old one for an older."""
TIMEOUT_S = 900
PACKAGES = {
    "anthropic_python.py": ["anthropic"],
    "cohere_python.py": ["cohere"],
    "instructor_python.py": ["instructor>=1.10"],
    "langchain_python.py": ["langchain-anthropic>=1", "langchain-openai>=1"],
    "litellm_python.py": ["litellm>=1.80", "mcp"],
    "llamaindex_python.py": [
        "llama-index-embeddings-openai-like",
        "llama-index-llms-openai-like",
    ],
    "openai_python.py": ["openai>=3"],
    "pydantic_ai_python.py": ["pydantic-ai-slim[anthropic,openai]>=1"],
}
DEFAULT = ["anthropic", "langchain", "litellm", "openai"]
"""What runs without arguments, in Python and Node: of the others few releases break anything."""
LEASE_S, LOADED_S = 15.0, 600.0
# The demo model is too small to fill in a schema by itself: without these it adds spaces until its
# length is reached, and writes arguments of tools that do not fit.
_BY_SCHEMA = (
    """--structured-outputs-config '{"backend": "xgrammar", "disable_any_whitespace": true}' """
    "--tool-strict-level parameter"
)
_POOLING = "--dtype float32 --enforce-eager --max-num-seqs 16 --runner pooling"
MODELS = {
    # What it is for: the model's name, and arguments of vLLM.
    "generate": ("flotilla-demo", _BY_SCHEMA),
    "embed": ("embedder", f"{_POOLING} --convert embed"),
    "rerank": ("reranker", _POOLING),
    "audio": ("whisper", "--dtype float32 --enforce-eager --max-num-seqs 8"),
}


@dataclass(frozen=True)
class Result:
    """One check of one script."""

    script: str
    check: str
    outcome: str
    seconds: float
    detail: str


def install_python(script: str) -> Path:
    """The interpreter of a virtual environment with the library of a script.

    One for each: some libraries keep others at old releases.
    """
    name, wanted = script.removesuffix("_python.py"), "\n".join(PACKAGES[script])
    folder = CACHE / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    if not stamp.exists() or stamp.read_text() != wanted:
        print(f"== installs {name}", flush=True)
        venv.create(folder, with_pip=True, clear=True)
        pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *PACKAGES[script]], check=True)
        stamp.write_text(wanted)
    return python


def install_node() -> None:
    """The packages that the .mjs files beside this one import, in node_modules."""
    CACHE.mkdir(parents=True, exist_ok=True)
    wanted, stamp = (HERE / "package.json").read_text(), CACHE / "node.installed"
    for path in HERE.glob("*.mjs"):  # Node looks for packages beside the file that imports them
        (CACHE / path.name).write_text(path.read_text())
    if not stamp.exists() or stamp.read_text() != wanted:
        (CACHE / "package.json").write_text(wanted)
        npm = ["npm", "install", "--silent", "--no-audit", "--no-fund"]
        subprocess.run(npm, cwd=CACHE, check=True)
        stamp.write_text(wanted)


def run(
    script: str, command: list[Any], folder: Path, environment: Mapping[str, str]
) -> list[Result]:
    """Run a script; what it prints beside its results goes to stderr."""
    print(f"== {script}", flush=True)
    done = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=dict(environment),
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    results = []
    for line in done.stdout.splitlines():
        try:
            found = json.loads(line)
            results.append(Result(script, **found))
        except (ValueError, TypeError):
            print(line, file=sys.stderr)
    if not results or (done.returncode and all(each.outcome == "ok" for each in results)):
        results.append(Result(script, "the script", "failed", 0, f"status {done.returncode}"))
    for each in results:
        print(f"{each.outcome:8} {each.seconds:6.1f} s  {each.check}  {each.detail[:300]}")
    return results


def fleet(stack: ExitStack, purposes: Iterable[str]) -> tuple[str, dict[str, str]]:
    """Start Redis, a gateway and a worker with real vLLM for each purpose.

    Returns the gateway's address, and the model of each purpose.
    """
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    redis = RedisServer(folder)
    redis.start()
    stack.callback(redis.stop)
    processes = Stack(redis.url, folder)
    stack.callback(processes.close)
    storage = str(folder / "files")
    values: Any = {"lease_s": LEASE_S, "storage_url": storage, "webhook_allow": "127.0.0.1"}
    gateway = processes.gateway(**values)
    processes.maintenance(**values)
    made = folder / "made"
    subprocess.run([sys.executable, "-m", "tests.harness.models.made", made], check=True)
    workers: dict[str, Process] = {}
    for purpose in purposes:
        name, engine_args = MODELS[purpose]
        model = {} if purpose == "generate" else {"model": str(made / name)}
        print(f"== starts vLLM with {name}", flush=True)
        workers[name] = processes.worker(
            wait=False,
            engine="vllm",
            served_model_name=name,
            engine_args=engine_args,
            lease_s=LEASE_S,
            **model,
        )
    for name, worker in workers.items():
        wait_for(worker.ready, f"{name} is ready", LOADED_S)
    return gateway.url, {purpose: MODELS[purpose][0] for purpose in purposes}


def main() -> None:
    """Run the scripts whose names contain one of the arguments."""
    parser = argparse.ArgumentParser(prog="make test-clients ARGS=...", description=__doc__)
    parser.add_argument(
        "scripts",
        nargs="*",
        default=DEFAULT,
        help="parts of names, such as openai, node, cohere; `_` is all of them; "
        f"by default {', '.join(DEFAULT)}",
    )
    parser.add_argument("--url", help="a running gateway; else one is started")
    parser.add_argument("--models", type=json.loads, help='of --url: {"generate": NAME, ...}')
    parser.add_argument(
        "--only", nargs="*", default=list(MODELS), help="purposes of models to start"
    )
    options = parser.parse_args()
    scripts = sorted(path.name for path in HERE.glob("*_*.py") if path.name != Path(__file__).name)
    scripts += sorted(path.name for path in HERE.glob("*_node.mjs"))
    chosen = [s for s in scripts if any(part in s for part in options.scripts)]
    pythons = {name: install_python(name) for name in chosen if name.endswith(".py")}
    if any(name.endswith(".mjs") for name in chosen):
        install_node()
    results = []
    with ExitStack() as stack:
        if options.url:
            url, models = options.url, options.models or {"generate": MODELS["generate"][0]}
        else:
            os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "HF_HUB_OFFLINE": "1"}
            url, models = fleet(stack, options.only)
        # LiteLLM would download its list of prices.
        environment = os.environ | {
            "CLIENTS_URL": url,
            "CLIENTS_MODELS": json.dumps(models),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        }
        for name in chosen:
            if name.endswith(".py"):
                results += run(name, [pythons[name], HERE / name], HERE, environment)
            else:
                results += run(name, [NODE, name], CACHE, environment)
    outcomes = [each.outcome for each in results]
    print(*(f"{outcomes.count(each)} {each}" for each in ("ok", "skipped", "failed")), sep=", ")
    sys.exit("failed" in outcomes)


if __name__ == "__main__":
    main()

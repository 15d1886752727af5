"""`flotilla batch run --local` with real vLLM answers as `LLM.generate`, though a worker dies."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.harness.fleet import metric
from tests.harness.models import DEMO_FOLDER
from tests.harness.settings import ROOT, child_environment
from tests.harness.up import children, is_alive
from tests.harness.waiting import wait_for

pytestmark = pytest.mark.vllm

RUN_S = 600.0
LINES = 200
RUNNING = 4
"""Lines of a worker that are in the middle of their answers when it is killed."""
# With float32 an answer does not depend on what else is in the batch.
ENGINE_ARGS = (
    "--dtype float32 --enforce-eager --max-model-len 1024 --max-num-seqs 16 "
    "--kv-cache-memory-bytes 268435456"
)
COMMAND = (
    str(Path(sys.executable).with_name("flotilla")), "batch", "run", "in.jsonl", "-o", "out.jsonl",
    "--endpoint", "/v1/completions", "--local", "--model", str(DEMO_FOLDER), "--workers", "2",
    "--engine-args", ENGINE_ARGS,
)  # fmt: skip


def bodies() -> list[str]:
    return [
        json.dumps(
            {
                "prompt": f"Worker {n} of the queue",
                "temperature": 0,
                "max_tokens": 60 + n % 60,
                "ignore_eos": True,
            }
        )
        for n in range(LINES)
    ]


def environment_of(pid: int) -> dict[str, str]:
    text = Path(f"/proc/{pid}/environ").read_bytes().decode()
    return dict(each.split("=", 1) for each in text.split("\0") if "=" in each)


def busy_worker(command: int) -> int:
    """A worker that runs lines, if there is one."""
    for pid in children(command):
        try:
            if not Path(f"/proc/{pid}/cmdline").read_bytes().endswith(b"\0-m\0worker\0"):
                continue
            port = environment_of(pid)["FLOTILLA_WORKER_PORT"]
            if metric(f"http://127.0.0.1:{port}", "flotilla_worker_slots", use="busy") >= RUNNING:
                return pid
        except (OSError, httpx.TransportError):
            continue
    return 0


def test_two_workers_answer_as_llm_generate_though_one_is_killed(tmp_path: Path) -> None:
    environment = child_environment() | {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    (tmp_path / "in.jsonl").write_text("\n".join(bodies()))
    output = tmp_path / "output"
    with output.open("wb") as target:
        command = subprocess.Popen(
            COMMAND, cwd=tmp_path, env=environment, stdout=target, stderr=target
        )
    try:

        def busy() -> int:
            assert command.poll() is None, output.read_text()
            return busy_worker(command.pid)

        os.kill(wait_for(busy, "a worker runs lines", RUN_S), signal.SIGKILL)
        pids = children(command.pid)
        assert command.wait(RUN_S) == 0, output.read_text()
    finally:
        command.kill()
        command.wait()
    assert not [pid for pid in pids if is_alive(pid)]
    assert not (tmp_path / "out.jsonl.flotilla").exists()
    lines = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    lines.sort(key=lambda line: int(line["custom_id"]))
    assert [line["custom_id"] for line in lines] == [str(n + 1) for n in range(LINES)]
    subprocess.run(
        [sys.executable, "-m", "tests.vllm.generate", tmp_path / "in.jsonl", tmp_path / "texts"],
        cwd=ROOT, env=environment, check=True, timeout=RUN_S,
    )  # fmt: skip
    texts = json.loads((tmp_path / "texts").read_text())
    assert [line["response"]["body"]["choices"][0]["text"] for line in lines] == texts

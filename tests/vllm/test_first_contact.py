"""`flotilla up` with a model of one's own on the CPU: one that fits, and two that don't."""

from __future__ import annotations

import json
import re
import shutil
import signal
import struct
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.harness.client import http
from tests.harness.settings import ROOT
from tests.harness.up import REAL, Up

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(1200)]

LOADED_S = 900.0
GIB = 1 << 30
LARGE = 1 << 40
"""More than any machine has."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A model of one's own: a copy of the demo's."""
    return shutil.copytree(ROOT / "worker/demo/model", tmp_path / "own")


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, **environment: str) -> Up:
        environment = {"FLOTILLA_ENGINE": "vllm", "HF_HUB_OFFLINE": "1", **environment}
        started.append(Up(tmp_path, *arguments, command=REAL, **environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()


def after_its_end(text: str, worker: str) -> list[str]:
    """What the terminal shows of a worker, without the worker's own log."""
    lines = re.findall(rf"^{worker} +\| (.*)$", text, re.MULTILINE)
    return [line for line in lines if not re.match(r"\d{4}-\d\d-\d\dT", line)]


def gibibytes(text: str) -> list[float]:
    return [float(number) for number in re.findall(r"([\d.]+) GiB", text)]


def change(path: Path, **values: int) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_two_workers_serve_a_model_of_ones_own(up: Callable[..., Up], folder: Path) -> None:
    arguments = ("--model", str(folder), "--workers", "2", "--engine-args=--enforce-eager")
    fleet = up(*arguments).wait_until_ready(LOADED_S)
    said = [
        [line for line in fleet.text().splitlines() if line.startswith(name) and "GiB" in line]
        for name in ("worker-1", "worker-2")
    ]
    assert [len(lines) for lines in said] == [1, 1], "each says its share in one line"
    url = f"http://127.0.0.1:{fleet.port}"
    body = {"model": str(folder), "messages": [{"role": "user", "content": "What is Flotilla?"}]}
    for _ in range(4):
        answer = http.post(f"{url}/v1/chat/completions", json=body, timeout=120)
        assert answer.status_code == 200, answer.text
        assert answer.json()["choices"][0]["message"]["content"]
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.process.wait(120) == 0


def test_weights_that_do_not_fit_are_told_first_and_tried_once(
    up: Callable[..., Up], folder: Path
) -> None:
    head = {"w": {"dtype": "BF16", "shape": [LARGE // 2], "data_offsets": [0, LARGE]}}
    text = json.dumps(head).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(file.tell() + LARGE)  # takes no room on the disk
    fleet = up("--model", str(folder))
    assert fleet.process.wait(LOADED_S) == 1
    first = after_its_end(fleet.text(), "worker-1")[0]
    needed, *others = gibibytes(first)
    assert needed == LARGE / GIB
    assert any(0 < each < needed for each in others), "what there is"
    assert "--workers" in first
    assert fleet.text().count("ended with exit status") == 1


def test_the_engines_own_error_stands_first_and_it_is_tried_twice(
    up: Callable[..., Up], folder: Path
) -> None:
    # The cache for one request of this length takes 1 GiB.
    change(folder / "config.json", max_position_embeddings=1 << 20)
    pool = {"model": str(folder), "served_names": ["own"], "engine_args": "--enforce-eager"}
    pools = {"own": pool, "other": {"engine": "simulated", "served_names": ["other"]}}
    (folder.parent / "flotilla.yaml").write_text(json.dumps({"pools": pools}))
    # No room for the whole of it.
    fleet = up(FLOTILLA_WORKER_MEMORY_BYTES=str(2 * GIB))
    assert fleet.process.wait(LOADED_S) == 1
    lines = after_its_end(fleet.text(), "worker-own-1")
    assert lines[0].startswith("ValueError: ")
    needed, available = gibibytes(lines[0])[:2]
    assert 0 < available < needed
    assert "max_model_len" in lines[0]
    ends = [line for line in lines if line.startswith("ended with exit status")]
    assert len(ends) == 2
    assert sum(line.startswith("ValueError: ") for line in lines) == 2, "both ends say it"

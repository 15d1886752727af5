"""What the fork server of a load test does first (tests/harness/fork.py calls these functions)."""

from __future__ import annotations

import importlib
import itertools
import mmap
import os
from pathlib import Path

from worker.engines.simulated.engine import Sequence
from worker.engines.vllm.args import DEMO_DEFAULTS

_PROCESSES = 1 << 16
_VLLM = (
    "vllm.v1.engine.core",
    "worker.engines.vllm.processors",
)
"""A worker that has them is ready after its model is loaded, without the 10 s of the imports."""


def count_tokens(path: str) -> None:
    """Count what the simulated engines generate: a number for each process in a file."""
    with Path(path).open("w+b") as file:
        file.truncate(_PROCESSES * 8)
        counts = memoryview(mmap.mmap(file.fileno(), 0)).cast("Q")
    server, started, number = os.getpid(), itertools.count(), 0
    advance = Sequence.advance

    def take_number() -> None:
        nonlocal number
        if os.getpid() == server:  # a process of its processes has that one's
            number = next(started) % _PROCESSES

    def counted(sequence: Sequence) -> None:
        counts[number] += 1
        advance(sequence)

    os.register_at_fork(before=take_number)
    Sequence.advance = counted  # type: ignore[method-assign,assignment]


def generated_tokens(path: Path) -> int:
    """Return what all processes have counted in the file so far."""
    return sum(memoryview(path.read_bytes()).cast("Q"))


def load_vllm() -> None:
    """Import vLLM with the settings of the demo model."""
    os.environ.update(DEMO_DEFAULTS)  # before OpenMP is loaded, which reads its own at once
    for module in _VLLM:
        importlib.import_module(module)
    importlib.import_module("worker.engines.vllm.engine").load_vllm()
    if importlib.import_module(
        "vllm.platforms"
    ).current_platform.is_cpu():  # it replaces parts of torch.cuda
        importlib.import_module("vllm.v1.worker.cpu_worker")
    # It finds the memory for names of processes only before a process replaces its environment.
    importlib.import_module("setproctitle").getproctitle()

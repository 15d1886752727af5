"""`rolling`: replace all workers of a fleet under load, one after the other.

Each worker's successor is started first, and SIGTERM is sent to the worker when it is ready, as
Kubernetes and Compose do. The clients are plain ones that never retry. Exit status 1 if a call
failed, was cut, or had another answer than an undisturbed one.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from load_tests.harness.http import free_port, responds_ok
from load_tests.harness.processes import Process, Processes, python_command, wait_for
from load_tests.harness.redis_server import RedisServer
from load_tests.harness.session import print_progress, result_path, save_result, session
from load_tests.harness.table import Table
from load_tests.rolling.client import Clients, undisturbed
from load_tests.systems.engine import MODEL, EngineTiming
from shared.platform.settings import Settings, to_environment
from worker.demo import MODEL_NAME

HELP = "replace all workers under load: no call may fail"

_LOADED_S = 400.0
_END_S = 120.0
_PROMPTS = 12
_ENGINE_ARGS = "--dtype float32"
"""With it an answer does not depend on what else is in the batch."""
_TIMING = EngineTiming(step_ms=20, step_us_per_seq=100, max_num_seqs=32)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument("--vllm", action="store_true", help="real vLLM with the demo model")
    parser.add_argument("--workers", type=int, default=3, help="workers (default 3)")
    parser.add_argument("--clients", type=int, default=8, help="streams at once (default 8)")
    parser.add_argument("--tokens", type=int, default=150, help="tokens per answer (default 150)")
    parser.add_argument("--json", type=Path, help="result file (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


@dataclass(frozen=True, slots=True)
class RollingResult:
    """What the clients of one run observed."""

    engine: str
    replaced: int
    calls: int
    failed: int
    wrong: int
    """Complete answers that differ from the undisturbed one."""
    pause_p50_s: float
    pause_p99_s: float
    pause_max_s: float
    drain_s: tuple[float, ...]
    """From SIGTERM to the end of each worker's process."""

    def table(self) -> Table:
        """As a table of one row."""
        head = ["engine", "workers\nreplaced", "calls", "failed\nor cut", "wrong"]
        head += ["pause p50 s", "p99 s", "max s", "slowest\ndrain s"]
        row = [self.engine, self.replaced, self.calls, self.failed, self.wrong]
        figures = [self.pause_p50_s, self.pause_p99_s, self.pause_max_s, max(self.drain_s)]
        cells = [*map(str, row), *(f"{figure:.2f}" for figure in figures)]
        return Table("Rolling restart of all workers", head, [cells])


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    with session() as processes:
        result = asyncio.run(_run(processes, arguments))
    print(result.table().render(markdown=arguments.markdown))
    save_result(arguments.json or result_path("rolling"), asdict(result))
    return 1 if result.failed or result.wrong else 0


async def _run(processes: Processes, arguments: argparse.Namespace) -> RollingResult:
    redis = RedisServer(processes, free_port(), processes.folder / "redis")
    port = free_port()
    gateway = processes.start(
        "gateway", "front", python_command("gateway"), _environment(redis.url, port=port)
    )
    fleet = _Workers(processes, redis.url, vllm=arguments.vllm)
    workers = [fleet.start() for _ in range(arguments.workers)]
    for worker in workers:
        await fleet.until_ready(worker)
    await asyncio.to_thread(wait_for, lambda: responds_ok(port, "/readyz"), "ready", [gateway])
    model = MODEL_NAME if arguments.vllm else MODEL
    clients = Clients(f"http://127.0.0.1:{port}", model, arguments.tokens)
    prompts = [f"Tell me about queues, part {n}." for n in range(_PROMPTS)]
    right = await undisturbed(clients, prompts)
    print_progress("the undisturbed answers are known; the restart begins")
    loops = [
        asyncio.create_task(clients.loop([*prompts[n % _PROMPTS :], *prompts[: n % _PROMPTS]]))
        for n in range(arguments.clients)
    ]
    drains = []
    for n, worker in enumerate(workers):
        await fleet.until_ready(fleet.start())
        began = time.monotonic()
        worker.popen.terminate()
        await asyncio.to_thread(worker.popen.wait, _END_S)
        drains.append(time.monotonic() - began)
        print_progress(f"worker {n + 1} of {len(workers)} is replaced")
    clients.stop()
    await asyncio.gather(*loops)
    await clients.close()
    calls = clients.calls
    pauses = sorted(call.pause_s for call in calls)
    for problem in sorted({call.problem for call in calls if call.problem}):
        print_progress(f"problem: {problem}")
    return RollingResult(
        engine="vLLM, demo model, CPU" if arguments.vllm else "simulated",
        replaced=len(drains),
        calls=len(calls),
        failed=sum(bool(call.problem) for call in calls),
        wrong=sum(not call.problem and call.text != right[call.prompt] for call in calls),
        pause_p50_s=pauses[len(pauses) // 2],
        pause_p99_s=pauses[min(len(pauses) - 1, round(0.99 * len(pauses)))],
        pause_max_s=pauses[-1],
        drain_s=tuple(drains),
    )


class _Workers:
    """Starts the workers of one fleet."""

    def __init__(self, processes: Processes, redis_url: str, *, vllm: bool) -> None:
        self._processes = processes
        self._redis_url = redis_url
        self._vllm = vllm
        self._ports: dict[int, int] = {}

    def start(self) -> Process:
        """Start one; does not wait."""
        port = free_port()
        settings: dict[str, Any] = {"worker_port": port}
        environment = (
            _environment(self._redis_url, engine="vllm", engine_args=_ENGINE_ARGS, **settings)
            if self._vllm
            else _TIMING.environment(redis_url=self._redis_url, **settings)
        )
        worker = self._processes.start("worker", "engine", python_command("worker"), environment)
        self._ports[worker.popen.pid] = port
        return worker

    async def until_ready(self, worker: Process) -> None:
        """Wait until a worker takes jobs. Raises ProcessError."""
        port = self._ports[worker.popen.pid]
        await asyncio.to_thread(
            wait_for, lambda: responds_ok(port, "/readyz"), "a worker", [worker], _LOADED_S
        )


def _environment(redis_url: str, **settings: Any) -> dict[str, str]:
    return to_environment(Settings(), redis_url=redis_url, **settings)

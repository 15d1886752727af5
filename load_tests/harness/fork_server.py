"""`python -m load_tests.harness.fork_server`: forks workers and gateways in milliseconds.

It imports everything that they need once, before any event loop or connection, and forks a process
for each command. A command is a line of JSON on its input; the reply is a line on its output:

    {"start": "worker" or "gateway", "environment": {...}, "log": path}  ->  {"pid": 123}
        (`environment`: all its variables; `descriptors`, if not null: its limit of open files)
    {"signal": 9, "pid": 123}  ->  {}; nothing is done if the process has ended
    {"tokens": true}  ->  {"tokens": 5}: what the engines of all workers have generated so far
    {}  ->  {}

Its arguments are names of negative controls (faults/kills/controls.py), `--count-tokens`, and
`--vllm` (preload vLLM, too).

Each reply also has `ended`: process id and exit status of the processes that have ended since the
reply before. Signals go through this process because it is the parent: a process id can't belong
to another process before its parent has read the exit status. Its processes end with it.
"""

from __future__ import annotations

import gc
import importlib
import json
import mmap
import os
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from shared.platform.death_signal import request_signal
from worker.engines.simulated.generation import Sequence
from worker.engines.vllm.arguments import DEMO_DEFAULTS

_PRELOADED = (
    "gateway.__main__",
    "h11",
    "httptools",
    "uvicorn.lifespan.on",
    "uvicorn.loops.uvloop",
    "uvicorn.protocols.http.httptools_impl",
    "uvloop",
    "worker.__main__",
    "worker.engines.simulated.engine",
)
_PRELOADED_VLLM = (
    "vllm.v1.engine.core",
    "worker.engines.vllm.engine",
    "worker.engines.vllm.prefill_resume",
)
"""A worker that has them is ready after its model is loaded, without the 10 s of the imports."""
COUNT_TOKENS, VLLM = "--count-tokens", "--vllm"
START_AFTER_S = "START_AFTER_S"
"""A variable: the process does nothing for so many seconds."""
_PROCESSES = 1 << 16


class TokenCounter:
    """A number per process, in memory that all of them share. Make it before the first fork."""

    def __init__(self) -> None:
        self._counts = memoryview(mmap.mmap(-1, _PROCESSES * 8)).cast("Q")

    def count_in(self, n: int) -> None:
        """Count from now on what the engine of this process generates; it is number `n`."""
        counts, slot, advance = self._counts, n % _PROCESSES, Sequence.advance

        def counted(sequence: Sequence) -> None:
            counts[slot] += 1
            advance(sequence)

        Sequence.advance = counted  # type: ignore[method-assign,assignment]

    def total(self) -> int:
        """Return the sum over all processes."""
        return sum(self._counts)


class ForkServer:
    """Carries out commands; see the module."""

    def __init__(self, mains: Mapping[str, Callable[[], None]], *, count_tokens: bool) -> None:
        self._mains = mains
        self._running: set[int] = set()
        self._n_started = 0
        self._counter = TokenCounter() if count_tokens else None

    def reply(self, command: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out one command; return the reply to it."""
        reply: dict[str, Any] = {}
        if "start" in command:
            self._n_started += 1
            pid = os.fork()
            if pid == 0:
                if self._counter is not None:
                    self._counter.count_in(self._n_started)
                _run(self._mains[command["start"]], command)
            self._running.add(pid)
            reply["pid"] = pid
        elif "signal" in command:
            if command["pid"] in self._running:
                os.kill(command["pid"], command["signal"])
        elif "tokens" in command:
            reply["tokens"] = self._counter.total() if self._counter is not None else 0
        reply["ended"] = [[pid, status] for pid, status in self._ended()]
        return reply

    def _ended(self) -> list[tuple[int, int]]:
        ended = []
        for pid in tuple(self._running):
            found, status = os.waitpid(pid, os.WNOHANG)
            if found:
                self._running.discard(pid)
                ended.append((pid, os.waitstatus_to_exitcode(status)))
        return ended


def main() -> None:
    """Carry out commands until the end of the input."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what vLLM prints at import is no reply
    options = set(sys.argv[1:])
    count_tokens = COUNT_TOKENS in options
    if names := options - {COUNT_TOKENS, VLLM}:
        controls = importlib.import_module("load_tests.faults.kills.controls").CONTROLS
        for name in names:
            controls[name]()
    if VLLM in options:
        os.environ.update(DEMO_DEFAULTS)  # before OpenMP is loaded, which reads its own at once
    for module in (*_PRELOADED, *(_PRELOADED_VLLM if VLLM in options else ())):
        importlib.import_module(module)
    if VLLM in options:
        vllm = importlib.import_module("worker.engines.vllm.release").load()
        if vllm.on_cpu():  # it replaces parts of torch.cuda
            importlib.import_module("vllm.v1.worker.cpu_worker")
        # It finds the memory for names of processes only before `_run` replaces the environment.
        importlib.import_module("setproctitle").getproctitle()
    mains = {name: _main_of(name) for name in ("worker", "gateway")}
    server = ForkServer(mains, count_tokens=count_tokens)
    gc.collect()
    gc.freeze()  # a collection in a child would copy the pages of all these objects
    print(json.dumps({}), file=replies, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.reply(json.loads(line))), file=replies, flush=True)


def _main_of(package: str) -> Callable[[], None]:
    found: Callable[[], None] = sys.modules[f"{package}.__main__"].main
    return found


def _run(process_main: Callable[[], None], command: Mapping[str, Any]) -> None:
    """Become the process; never returns."""
    status = 1
    try:
        request_signal(signal.SIGKILL)
        if descriptors := command.get("descriptors"):
            resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, descriptors))
        output = os.open(command["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for descriptor, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(descriptor, target)
        os.setsid()
        os.environ.clear()
        os.environ.update(command["environment"])
        time.sleep(float(os.environ.pop(START_AFTER_S, "0")))
        process_main()
        status = 0
    except SystemExit as error:
        if isinstance(error.code, str):
            print(error.code, file=sys.stderr)
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    main()

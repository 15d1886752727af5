"""Measures the memory that one open stream without tokens takes in each process."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Sequence
from dataclasses import asdict

from load_tests.bench.points import Point
from load_tests.bench.rounds import run_point, tolerate_failure
from load_tests.clients.load_client import LoadSpec
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.processes import Processes, python_command
from load_tests.harness.session import Progress
from load_tests.systems.engine import SLOW, request_body
from load_tests.systems.registry import SYSTEMS
from load_tests.systems.system import System

_STREAMS = 1000
_WARM_UP = Point("warm-up", 64, 64, 1, timing=SLOW)
"""Streams that end by themselves: not every system notices a client that disconnects."""
_TOKENS = 1000
_RAMP_S = 0.001
_SETTLE_S = 0.3
_TIMEOUT_S = 60.0


def measure_open_streams(
    processes: Processes, names: Sequence[str], progress: Progress
) -> dict[str, dict[str, float]]:
    """Return private bytes per stream by system and process.

    Raises ProcessError, WrongAnswerError.
    """
    per_stream = {}
    for name in names:
        system = SYSTEMS[name](processes, SLOW)
        with tolerate_failure(system, progress):
            system.start()
            run_point(system, _WARM_UP, 0)
            before = private_bytes(system)
            after = _private_bytes_with_streams(system)
            per_stream[name] = {label: (after[label] - before[label]) / _STREAMS for label in after}
            parts = ", ".join(f"{label} {n / 1e3:.1f}" for label, n in per_stream[name].items())
            progress(f"memory of an open stream, {name}: {parts} KB")
        processes.close()
    return per_stream


def private_bytes(system: System) -> dict[str, float]:
    """Return private bytes by label; processes with the same label are added up."""
    sizes: dict[str, float] = {}
    for process in system.processes:
        sizes[process.label] = sizes.get(process.label, 0.0) + process.memory().private
    return sizes


def _private_bytes_with_streams(system: System) -> dict[str, float]:
    """Open the streams, measure, close them."""
    spec = LoadSpec(
        ports=tuple(system.ports),
        path=system.path,
        body=json.dumps(request_body(tokens=_TOKENS, stream=True)),
        hold=True,
        connections=_STREAMS,
        ramp_s=_RAMP_S,
        timeout_s=_TIMEOUT_S,
    )
    command = python_command("load_tests.clients.load_client")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(json.dumps(asdict(spec)) + "\n")
        client.stdin.flush()
        answer = client.stdout.readline()
        held = json.loads(answer)["held"] if answer else 0
        time.sleep(_SETTLE_S)
        sizes = private_bytes(system)
        client.communicate("done\n", _TIMEOUT_S)
    if held != _STREAMS:
        raise WrongAnswerError(f"{system.name}: {held} of {_STREAMS} streams could be opened")
    return sizes

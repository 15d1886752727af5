"""Measures the memory that one open stream without tokens takes in each process."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from load_tests.bench.points import Point
from load_tests.bench.rounds import load_spec, run_client, run_point
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.session import Progress
from load_tests.systems.engine import SLOW
from load_tests.systems.flotilla import SYSTEMS
from load_tests.systems.system import System
from tests.harness.fleet import Stack

_STREAMS = 1000
_WARM_UP = Point("warm-up", 64, 64, 1, timing=SLOW)
"""Streams that end by themselves."""
_OPEN = Point("open", _STREAMS, _STREAMS, 1000, timing=SLOW)
_RAMP_S = 0.001
_OPEN_S, _MEASURED_S = 6.0, 3.0
"""All streams are open after a second, and have had a token within two steps more."""


def measure_open_streams(
    processes: Stack, names: Sequence[str], progress: Progress
) -> dict[str, dict[str, float]]:
    """Return private bytes per stream by system and process.

    Raises ProcessError, WrongAnswerError.
    """
    per_stream = {}
    for name in names:
        system = SYSTEMS[name](processes, SLOW)
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
        sizes[process.name] = sizes.get(process.name, 0.0) + process.memory().private
    return sizes


def _private_bytes_with_streams(system: System) -> dict[str, float]:
    """Open the streams, measure; the client closes them when its time is up."""
    spec = replace(load_spec(system, _OPEN), ramp_s=_RAMP_S, timeout_s=_OPEN_S + _MEASURED_S)
    with ThreadPoolExecutor(1) as thread:
        client = thread.submit(run_client, spec)
        time.sleep(_OPEN_S)
        sizes = private_bytes(system)
        found = client.result()
    if math.isnan(found.ttft_p50_s) or found.problems != [f"{_STREAMS}x not answered in time"]:
        raise WrongAnswerError(f"{system.name}: {found.problems} instead of open streams")
    return sizes

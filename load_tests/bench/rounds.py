"""Rounds of measurements: in each, all systems run a point one after the other.

Every other round runs the systems in reverse order. A machine's speed changes from minute to
minute, so figures are compared only within a round. A wrong answer ends the run: its speed would
mean nothing.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import TypeVar

from load_tests.bench.measurement import Measurement
from load_tests.bench.points import Point
from load_tests.clients.load_client import LoadResult, LoadSpec
from load_tests.clients.sse_parser import SseParser
from load_tests.harness import machine
from load_tests.harness.errors import WrongAnswerError
from load_tests.harness.session import Progress
from load_tests.oracle.answer import DONE
from load_tests.systems.engine import request_body
from load_tests.systems.flotilla import SYSTEMS
from load_tests.systems.system import System
from tests.harness.client import http
from tests.harness.fleet import Stack
from tests.harness.processes import python_command

S = TypeVar("S", bound=System)
_SETTLE_S = 0.05
_CLIENT_EXTRA_S = 15.0
_CHECKED_TOKENS = 64
_ANSWER_PREFIX = "[simulated]"
_LOG_SIZE = Point("log-size", 16, 16, 64)
_WARM_UP = (Point("warm-up", 8, 32, 8), Point("warm-up", 8, 32, 1, stream=False))


def measure(
    processes: Stack,
    names: Sequence[str],
    points: Sequence[Point],
    rounds: int,
    progress: Progress,
) -> tuple[list[Measurement], dict[str, float]]:
    """Measure systems at points that share one engine speed.

    Returns the measurements, and the bytes of Redis memory per token of log by system.
    Raises ProcessError, WrongAnswerError.
    """
    (timing,) = {point.timing for point in points}
    systems, log_bytes, measurements = [], {}, []
    for name in names:
        system = SYSTEMS[name](processes, timing)
        system.start()
        run_point(system, _LOG_SIZE, 0)
        size = system.log_bytes()
        if size is not None:
            log_bytes[name] = size / (_LOG_SIZE.requests * _LOG_SIZE.tokens)
        check_answers(system)
        for point in _WARM_UP:
            run_point(system, point, 0)
        systems.append(system)
    for round_index, point, system in schedule(systems, points, rounds):
        measurement = run_point(system, point, round_index)
        progress(progress_line(measurement))
        measurements.append(measurement)
    return measurements, log_bytes


def schedule(
    systems: Sequence[S], points: Sequence[Point], rounds: int
) -> Iterator[tuple[int, Point, S]]:
    """Yield (round, point, system) in the order in which they are measured."""
    for round_index in range(rounds):
        for point in points:
            if round_index >= point.max_rounds:
                continue
            for system in systems if round_index % 2 == 0 else reversed(systems):
                yield round_index, point, system


def run_point(system: System, point: Point, round_index: int) -> Measurement:
    """Run a point's load; measure the CPU time of the system's processes meanwhile.

    Raises WrongAnswerError.
    """
    load_average, ticks = os.getloadavg()[0], machine.cpu_ticks()
    redis_before = system.redis_counters()
    before = system.cpu_s()
    client = run_client(load_spec(system, point))
    time.sleep(_SETTLE_S)
    after = system.cpu_s()
    redis_after = system.redis_counters()
    if client.errors:
        raise WrongAnswerError(f"{system.name} at {point.name}: {'; '.join(client.problems)}")
    return Measurement(
        system=system.name,
        point=point.name,
        round=round_index,
        unit=point.unit,
        step_s=point.step_s,
        client=client,
        cpu_s={label: after[label] - before[label] for label in after},
        roles=system.roles(),
        redis={name: value - redis_before.get(name, 0.0) for name, value in redis_after.items()},
        load_average=load_average,
        stolen=machine.stolen_share(ticks, machine.cpu_ticks()),
    )


def load_spec(system: System, point: Point) -> LoadSpec:
    """Return what the load client sends to this system at this point."""
    return LoadSpec(
        ports=tuple(system.ports),
        path=system.path,
        body=json.dumps(
            request_body(tokens=point.tokens, stream=point.stream) | system.body_fields
        ),
        connections=point.connections,
        requests=point.requests,
        ramp_s=point.ramp_s,
        tokens=point.tokens,
        events=point.tokens + system.extra_events if point.stream else 0,
        least_events=system.least_events,
        contains="" if point.stream else _ANSWER_PREFIX,
        timeout_s=system.timeout_s + 10 * point.shortest_s,
    )


def run_client(spec: LoadSpec) -> LoadResult:
    """Run the load client in a process of its own. Raises WrongAnswerError if it fails."""
    client = subprocess.run(
        python_command("load_tests.clients.load_client"),
        input=json.dumps(asdict(spec)) + "\n",
        capture_output=True,
        text=True,
        timeout=spec.timeout_s + _CLIENT_EXTRA_S,
    )
    if client.returncode:
        raise WrongAnswerError(f"the load client failed:\n{client.stderr[-2000:]}")
    return LoadResult(**json.loads(client.stdout))


def check_answers(system: System) -> None:
    """Compare a streamed answer with one that is not; both must have the tokens asked for.

    Raises WrongAnswerError.
    """
    text = json.loads(_request(system, stream=False))["choices"][0]["message"]["content"]
    events = SseParser().feed(_request(system, stream=True).encode())
    chunks = [json.loads(event.data) for event in events if event.data != DONE]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    streamed = "".join(choice["delta"].get("content") or "" for choice in choices)
    right = text.startswith(_ANSWER_PREFIX) and len(text.split()) == _CHECKED_TOKENS
    if not right or text != streamed:
        raise WrongAnswerError(f"{system.name}: answer {text!r}, streamed {streamed!r}")


def _request(system: System, *, stream: bool) -> str:
    body = request_body(tokens=_CHECKED_TOKENS, stream=stream)
    url = f"http://127.0.0.1:{system.ports[0]}{system.path}"
    answer = http.post(url, json=body)
    if answer.status_code != 200:
        problem = f"status {answer.status_code}: {answer.text[:500]!r}"
        raise WrongAnswerError(f"{system.name}: {problem}")
    return answer.text


def progress_line(measurement: Measurement) -> str:
    """Return the line that is printed after a measurement."""
    client = measurement.client
    cpu = " ".join(
        f"{label} {measurement.process_us(label):.0f}" for label in sorted(measurement.cpu_s)
    )
    jitter = "" if math.isnan(client.gap_sd_s) else f" gap sd {1e3 * client.gap_sd_s:.1f}"
    return (
        f"{measurement.round} {measurement.point:9} {measurement.system:13}"
        f" {measurement.total_us:6.0f} us/{measurement.unit} ({cpu})"
        f"  TTFT {1e3 * client.ttft_p50_s:.1f}/{1e3 * client.ttft_p99_s:.1f}{jitter} ms"
        f"  {client.tokens / client.wall_s:.0f} tok/s {client.done / client.wall_s:.0f} req/s"
        f"  client {1e6 * client.cpu_s / measurement.units:.0f} us"
        f"  load {measurement.load_average:.1f}  stolen {measurement.stolen:.0%}"
    )

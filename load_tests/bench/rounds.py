"""Rounds of measurements: in each, every system runs a point, back to back; every other backwards.

A machine's speed changes from minute to minute, so figures are compared within a round only. A
wrong answer of the product, or of what it is judged by, ends the run: nothing that it does fast
would count.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from http.client import HTTPConnection
from typing import Any

from load_tests.bench.measurement import Measurement
from load_tests.bench.points import Point
from load_tests.clients.load_client import Result, Spec
from load_tests.harness import machine
from load_tests.harness.processes import ProcessError, Processes, python
from load_tests.systems.engine import request_body
from load_tests.systems.registry import SYSTEMS
from load_tests.systems.system import System

_SETTLE_S = 0.05
_CLIENT_EXTRA_S = 15.0
_CHECKED_TOKENS = 64
_LABEL = "[simulated]"
_FEWEST_REQUESTS = 30
_LOGGED = Point("log", 16, 16, 64)
_WARM_UP = (Point("warm-up", 8, 32, 8), Point("warm-up", 8, 32, 1, stream=False))

Say = Callable[[str], None]


class WrongAnswer(RuntimeError):
    """A system does not answer as it must."""


def measure(
    processes: Processes, names: Sequence[str], points: Sequence[Point], rounds: int, say: Say
) -> tuple[list[Measurement], dict[str, float]]:
    """All points, and what a token takes in the logs; `points` share one speed of the engine.

    Raises ProcessError, WrongAnswer.
    """
    (timing,) = {point.timing for point in points}
    systems, log_bytes, measurements = [], {}, []
    for name in names:
        system = SYSTEMS[name](processes, timing)
        with some_may_fail(system, say):
            system.start()
            run_point(system, _LOGGED, 0)
            logged = system.log_bytes()
            if logged is not None:
                log_bytes[name] = logged / (_LOGGED.requests * _LOGGED.tokens)
            check_answers(system)
            for point in _WARM_UP:
                run_point(system, point, 0)
            systems.append(system)
    for n_round, point, system in schedule(systems, points, rounds):
        with some_may_fail(system, say):
            measurement = run_point(system, point, n_round)
            say(line(measurement))
            measurements.append(measurement)
    return measurements, log_bytes


@contextlib.contextmanager
def some_may_fail(system: System, say: Say) -> Iterator[None]:
    """What the product is only compared with may fail: one line tells it, and the run goes on."""
    try:
        yield
    except (ProcessError, WrongAnswer) as error:
        if not system.may_fail:
            raise
        say(f"{system.name} is left out here: {' '.join(str(error).split())[:300]}")


def schedule(
    systems: Sequence[System], points: Sequence[Point], rounds: int
) -> Iterator[tuple[int, Point, System]]:
    """Who runs what when."""
    for n_round in range(rounds):
        for point in points:
            if n_round >= point.most_rounds:
                continue
            for system in systems if n_round % 2 == 0 else reversed(systems):
                if point.name not in system.skipped_points:
                    yield n_round, point, system


def run_point(system: System, point: Point, n_round: int) -> Measurement:
    """Load, and what everybody used meanwhile. Raises WrongAnswer."""
    load_average, ticks = os.getloadavg()[0], machine.cpu_ticks()
    redis_before = system.redis_counters()
    before = system.cpu_s()
    client = run_client(spec_of(system, point, seed=n_round + 1))
    time.sleep(_SETTLE_S)
    after = system.cpu_s()
    redis_after = system.redis_counters()
    if client.errors:
        raise WrongAnswer(f"{system.name} at {point.name}: {'; '.join(client.problems)}")
    return Measurement(
        system=system.name,
        point=point.name,
        round=n_round,
        unit=point.unit,
        step_s=point.step_s,
        client=client,
        cpu_s={label: after[label] - before[label] for label in after},
        roles=system.roles(),
        redis={name: value - redis_before.get(name, 0.0) for name, value in redis_after.items()},
        load_average=load_average,
        stolen=machine.stolen_share(ticks, machine.cpu_ticks()),
    )


def spec_of(system: System, point: Point, seed: int = 1) -> Spec:
    """What the load client is told."""
    fewest = max(point.connections, min(point.requests, _FEWEST_REQUESTS))
    return Spec(
        ports=tuple(system.ports),
        path=system.path,
        headers=dict(system.headers),
        body=json.dumps(request_body(tokens=point.tokens, stream=point.stream)),
        mode="open" if point.rate else "closed",
        connections=point.connections,
        requests=max(fewest, point.requests // system.fewer_requests),
        ramp_s=point.ramp_s,
        rate=point.rate,
        seed=seed,
        tokens=point.tokens,
        events=point.tokens + system.extra_events if point.stream else 0,
        contains="" if point.stream else _LABEL,
        timeout_s=20 + 10 * point.shortest_s,
    )


def run_client(spec: Spec) -> Result:
    """Raises WrongAnswer if the client fails."""
    client = subprocess.run(
        python("load_tests.clients.load_client"),
        input=json.dumps(asdict(spec)) + "\n",
        capture_output=True,
        text=True,
        timeout=spec.timeout_s + _CLIENT_EXTRA_S,
    )
    if client.returncode:
        raise WrongAnswer(f"the load client failed:\n{client.stderr[-2000:]}")
    return Result(**json.loads(client.stdout))


def check_answers(system: System) -> None:
    """Both kinds must say the same, and as much as was asked for. Raises WrongAnswer."""
    text = json.loads(_ask(system, stream=False))["choices"][0]["message"]["content"]
    streamed = "".join(
        choice["delta"].get("content") or ""
        for event in _events(_ask(system, stream=True))
        for choice in event["choices"]
    )
    if not text.startswith(_LABEL) or len(text.split()) != _CHECKED_TOKENS or text != streamed:
        raise WrongAnswer(f"{system.name}: whole answer {text!r}, streamed {streamed!r}")


def _ask(system: System, *, stream: bool) -> bytes:
    connection = HTTPConnection("127.0.0.1", system.ports[0], timeout=30)
    try:
        body = json.dumps(request_body(tokens=_CHECKED_TOKENS, stream=stream))
        headers = {"content-type": "application/json", **system.headers}
        connection.request("POST", system.path, body, headers)
        response = connection.getresponse()
        answer = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise WrongAnswer(f"{system.name}: status {response.status}: {answer[:500]!r}")
    return answer


def _events(stream: bytes) -> Iterator[dict[str, Any]]:
    for part in stream.split(b"\n\n"):
        if part.startswith(b"data: {"):
            yield json.loads(part.removeprefix(b"data: "))


def line(measurement: Measurement) -> str:
    """One measurement, for those who watch."""
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

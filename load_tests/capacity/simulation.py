"""A discrete-event simulation of workers, Redis masters and gateways. Times are microseconds.

Each process is a queue: it does one thing at a time, in the order of arrival. Work goes one way,
from workers by Redis and gateways to clients, so each queue is simulated after those before it.
"""

from __future__ import annotations

import math
import operator
import random
from bisect import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from load_tests.capacity.stamped import step_factor

Costs = Mapping[str, Mapping[str, float]]
"""CPU microseconds by part and by what they are spent for: see FEATURES."""
Spread = Sequence[tuple[int, Sequence[float]]]
"""Ascending (batch size, times of a call of up to so many frames / their mean)."""
Arrival = tuple[float, float, Any]
"""When something comes to a process, what it costs there, what it is."""

FEATURES = {
    "redis": ("step", "frame", "cold", "message", "request", "second", "fleet", "wake"),
    "gateway": ("message", "frame", "cold", "request", "second", "wake"),
    "workers": ("step", "frame", "request", "second", "wake"),
    "client": ("frame", "request", "wake"),
}
"""What CPU time is spent for. `frame`: the output of a job in a step; `cold`: of a frame, beside
that, where nothing of its job or connection is in the CPU's caches any more; `message`: all that a
gateway gets of a step (Redis' first one belongs to the step); `second`: of each gateway or,
elsewhere, of each worker, with jobs or without; `fleet`: a second of all together; `wake`: see
`coldness`, of Redis only by a step, as the rest comes so seldom that its cost has it."""
_COLD_US = 3000.0
_COLD_FRAME_MS = 30.0


@dataclass(frozen=True, slots=True)
class Size:
    """A fleet and its load. All streams are open all the time."""

    workers: int
    streams: int
    step_ms: float
    tokens: int = 128
    """Of each answer."""
    gateways: int = 1
    near: int = 0
    """From how many gateways a worker's streams come; 0: from all."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a fleet does."""

    cores: dict[str, float]
    """Of all processes of a part."""
    busiest: dict[str, float]
    """Of the process of a part that has most to do; above 1 it can't do it."""
    ages_us: list[float]
    """How old tokens are when they have left the gateway, or on one machine reached the client."""


def coldness(idle_us: float) -> float:
    """Return which part of the highest cost of waking up a process has after this time: the longer
    it slept, the less of its data is left in the CPU's caches. The form is assumed, not measured.
    """
    return 1 - math.exp(-idle_us / _COLD_US)


def cold_share(step_ms: float) -> float:
    """Return which part of a stream's data is no longer in the CPU's caches when its next frame
    comes. The form is assumed; its constant fits three measurements."""
    return 1 - math.exp(-step_ms / _COLD_FRAME_MS)


def serve(
    arrivals: Iterable[Arrival], wake_us: float, always: bool = True
) -> tuple[float, list[Arrival]]:
    """Return how long a process works, and when it began with what, and how long that took.

    Not `always`: what is None wakes it at no cost.
    """
    free_at = work = 0.0
    done = []
    for at, cost, what in sorted(arrivals, key=lambda each: each[0]):
        if at > free_at and (always or what is not None):
            cost += wake_us * coldness(at - free_at)
        begin = max(at, free_at)
        free_at = begin + cost
        work += cost
        done.append((begin, cost, what))
    return work, done


def simulate(
    size: Size,
    masters: int,
    costs: Costs,
    spread: Spread,
    seconds: float,
    *,
    local: bool = False,
    seed: int = 1,
) -> Prediction:
    """Simulate a fleet whose workers are spread over the masters; equal arguments, equal results.

    `local`: as it is measured, with all workers in one process, and a client. `seed`: of which step
    comes when.
    """
    rng, until = random.Random(seed), seconds * 1e6
    seen = min(size.gateways, 2)  # the others are like these: they only cost Redis their messages
    counts = {
        "workers": 1 if local else size.workers,
        "redis": masters,
        "gateway": seen,
        "client": 1,
    }
    queues: dict[str, list[list[Arrival]]] = {
        part: [[] for _ in range(n)] for part, n in counts.items()
    }

    def cost(part: str, **units: float) -> float:
        return sum(costs[part][name] * n for name, n in units.items())

    def send(part: str, n: int, at: float, cost_us: float, what: Any = None) -> None:
        queues[part][n % len(queues[part])].append((at, cost_us, what))

    places = []  # of each worker, how many of its streams each gateway has
    for worker in range(size.workers):
        streams = range(worker, size.streams, size.workers)
        near = min(size.near or size.gateways, size.gateways)
        chosen = (n if local else worker + rng.randrange(near) for n in streams)
        places.append(Counter(n % size.gateways for n in chosen))
        frames, step_us = len(streams), size.step_ms * 1e3 * step_factor(worker, size.workers)
        at = rng.random() * step_us
        while frames and at < until:
            send("workers", worker, at, cost("workers", step=1, frame=frames), worker)
            at += step_us
        for part, own in (("workers", True), ("redis", True), ("gateway", worker < seen)):
            for second in range(math.ceil(seconds) * own):
                send(part, worker, (second + rng.random()) * 1e6, cost(part, second=1))
    for second in range(math.ceil(seconds)):
        send("redis", 0, (second + rng.random()) * 1e6, cost("redis", fleet=1))
    for _ in range(round(size.streams * 1e3 / size.step_ms / size.tokens * seconds)):
        at = rng.random() * until
        for part, of in (
            ("workers", size.workers),
            ("redis", masters),
            ("gateway", size.gateways),
            ("client", 1),
        ):
            if (n := rng.randrange(of)) < len(queues[part]) or part == "workers":
                send(part, n, at, cost(part, request=1))
    used: dict[str, list[float]] = {}

    def finish(part: str) -> Iterable[Arrival]:
        done = [serve(each, costs[part]["wake"], part != "redis") for each in queues[part]]
        used[part] = [work / until for work, _ in done]
        return (each for _, served in done for each in served if each[2] is not None)

    cold = cold_share(size.step_ms)
    for begin, took, worker in finish("workers"):
        messages, f = len(places[worker]), places[worker].total()
        redis = cost("redis", step=1, frame=f, cold=f * cold, message=messages - 1)
        redis *= rng.choice(
            spread[min(bisect(spread, f - 1, key=lambda each: each[0]), len(spread) - 1)][1]
        )
        send("redis", worker, begin + took, redis, (worker, begin + took / 2))
    for begin, took, (worker, stamp) in finish("redis"):
        for n in range(seen):
            if frames := places[worker][n]:
                send(
                    "gateway",
                    n,
                    begin + took,
                    cost("gateway", message=1, frame=frames, cold=frames * cold),
                    (frames, stamp),
                )
    left = finish("gateway")
    if local:
        for begin, took, (frames, stamp) in left:
            send("client", 0, begin + took, cost("client", frame=frames), (frames, stamp))
        left = finish("client")
    ages = [
        begin + took * (n + 1) / frames - stamp
        for begin, took, (frames, stamp) in left for n in range(frames)
    ]  # fmt: skip
    cores = {part: sum(each) for part, each in used.items()}
    cores["gateway"] *= size.gateways / seen
    return Prediction(cores, {part: max(each) for part, each in used.items()}, sorted(ages))


def fit(runs: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, float]]:
    """Return the costs that explain the CPU time of these measured runs best; none is negative.

    The times of Redis' scripts tell the least that a step, a frame and a message cost.
    """
    found = {}
    for part, names in FEATURES.items():
        rows = [[_units(run, part)[name] for name in names] for run in runs]
        least = dict.fromkeys(names, 0.0) | (script_costs(runs) if part == "redis" else {})
        spent = [1e6 * run["cpu_s"][part] for run in runs]
        factors = least_squares(rows, spent, list(least.values()))
        found[part] = dict(zip(names, factors, strict=True))
    return found


def script_costs(runs: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return microseconds of `emit` for a step, a frame and a message behind the first one.

    By the fastest tenth of the calls of each kind: those that found their data in the CPU's caches.
    """
    times = [
        (each["batch"], each["messages"], each["quantiles_us"][len(each["quantiles_us"]) // 10])
        for run in runs for each in run["scripts"]
        if each["script"] == "emit" and each["messages"] and each["calls"] >= 50
    ]  # fmt: skip
    rows = [[1.0, batch, messages - 1.0] for batch, messages, _ in times]
    factors = least_squares(rows, [us for *_, us in times], [0.0] * 3)
    return dict(zip(("step", "frame", "message"), factors, strict=True))


def _units(run: Mapping[str, Any], part: str) -> dict[str, float]:
    processes = run["size"]["gateways"] if part == "gateway" else 1
    idle = max(0.0, 1 - run["cpu_s"][part] / run["seconds"] / processes)
    wakes = idle * run["steps" if part in ("redis", "workers") else "messages"]
    slept_us = 1e6 * idle * run["seconds"] * processes / max(1.0, wakes)
    step_ms = 1e3 * run["seconds"] * run["size"]["workers"] / max(1, run["steps"])
    units = {
        "cold": run["frames"] * cold_share(step_ms),
        **{unit: run[f"{unit}s"] for unit in ("step", "frame", "request")}, "fleet": run["seconds"],
        "message": run["messages"] - (run["steps"] if part == "redis" else 0),
        "second": run["seconds"] * run["size"]["gateways" if part == "gateway" else "workers"],
    }  # fmt: skip
    # The mean of `coldness`, as what comes at random times comes after pauses of all lengths.
    return {**units, "wake": wakes * slept_us / (slept_us + _COLD_US)}


def least_squares(
    rows: Sequence[Sequence[float]], wanted: Sequence[float], least: Sequence[float]
) -> list[float]:
    """Return factors of the columns, at least `least`, with the least relative errors squared."""
    columns = list(
        zip(*([v / w for v in row] for row, w in zip(rows, wanted, strict=True)), strict=True)
    )
    norms = [sum(v * v for v in column) for column in columns]
    factors = list(least)
    errors = [1 - sum(map(operator.mul, row, least)) for row in zip(*columns, strict=True)]
    for _ in range(20_000):  # one factor after the other, until nothing changes any more
        before = factors.copy()
        for n, column in enumerate(columns):
            if norms[n]:
                by = sum(v * e for v, e in zip(column, errors, strict=True)) / norms[n]
                by = max(least[n] - factors[n], by)
                factors[n] += by
                errors = [e - by * v for e, v in zip(errors, column, strict=True)]
        if all(map(math.isclose, before, factors)):
            break
    return factors


def spread_of(runs: Iterable[Mapping[str, Any]]) -> Spread:
    """Return the spread of `emit` by batch size; runs with the same one count the same."""
    found: dict[int, list[float]] = {}
    for run in runs:
        for each in run["scripts"]:
            if each["script"] == "emit":
                ratios = [us / each["mean_us"] for us in each["quantiles_us"]]
                found.setdefault(each["batch"], []).extend(ratios)
    return sorted(found.items())

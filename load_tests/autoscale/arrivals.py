"""Loads over time for the simulation: when jobs arrive, and how long each runs.

They are random, but equal for equal seeds.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle

_JOB_S = 10.0
"""Mean run time of a job."""
_SPREAD = 0.8
"""Standard deviation of the logarithm of a run time: 1 % of jobs take over six medians."""
TOKENS_PER_S = 50.0
_TOKENS_SPREAD = 0.3
"""Standard deviation of the logarithm of the error of a job's estimated tokens."""
_DAY_S = 86_400.0

Times = Callable[[random.Random], Iterator[float]]
"""Arrival times in seconds since the start, ascending."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that arrives."""

    at_s: float
    job_s: float
    """Seconds that it occupies a slot."""
    tokens: float
    """Its estimated tokens while it waits."""


@dataclass(frozen=True, slots=True)
class LoadShape:
    """A load, and the range of workers that a policy may choose from."""

    name: str
    description: str
    seconds: float
    times: Times
    min_workers: int = 1
    max_workers: int = 12

    def arrivals(self, seed: int) -> list[Arrival]:
        """Return the jobs; equal seeds give equal jobs."""
        rng = random.Random(f"{self.name} {seed}")
        centre = math.log(_JOB_S) - _SPREAD**2 / 2
        arrivals = []
        for at_s in list(self.times(rng)):
            job_s = rng.lognormvariate(centre, _SPREAD)
            tokens = TOKENS_PER_S * job_s * rng.lognormvariate(0, _TOKENS_SPREAD)
            arrivals.append(Arrival(at_s, job_s, tokens))
        return arrivals


Rate = Callable[[float], float]
"""Jobs a second at a second of the simulation."""
_POISSON: Sequence[tuple[str, str, float, float, int, Rate]] = (
    ("step", "0.5, then 4, then 0.5 jobs/s", 4, 5400, 1, lambda s: 4 if 900 <= s < 3600 else 0.5),
    ("ramp", "0.2 to 5 jobs/s and back", 5, 5400, 1, lambda s: max(0.2, 5 - abs(s - 2700) / 375)),
    (
        "day",
        "24 h, 0.1 jobs/s at night, 2.9 at noon",
        2.9,
        _DAY_S,
        1,
        lambda s: 1.5 - 1.4 * math.cos(2 * math.pi * s / _DAY_S),
    ),
    ("spikes", "1 job/s, a minute of 8 each 15", 8, 7200, 1, lambda s: 8 if s % 900 >= 840 else 1),
    ("square", "1 and 4 jobs/s, 6 min each", 4, 7200, 1, lambda s: 4 if s % 720 >= 360 else 1),
    ("rare", "held out: one job in 200 s", 0.005, 36000, 0, lambda s: 0.005),
)
"""Name, description, highest rate, seconds, fewest workers, rate of loads with Poisson arrivals."""


def load_shapes() -> Mapping[str, LoadShape]:
    """Return all loads by name."""
    known = [
        LoadShape(name, description, seconds, poisson(rate, peak, seconds), min_workers)
        for name, description, peak, seconds, min_workers, rate in _POISSON
    ]
    known += [
        LoadShape(
            "burst", "400 at once, every half hour", 7200, _bursts(400, 1800, 7200), min_workers=0
        ),
        LoadShape("gusts", "held out: gusts of 30 s, 5.5 jobs/s", 3600, _periods(_gusts, 3600)),
        LoadShape("drift", "held out: new rate every 1 to 20 min", 14400, _periods(_drift, 14400)),
    ]
    return {shape.name: shape for shape in known}


def poisson(rate: Rate, peak: float, seconds: float) -> Times:
    """Return Poisson arrivals at `rate(second)` jobs a second, which must not exceed `peak`."""

    def times(rng: random.Random) -> Iterator[float]:
        at_s = rng.expovariate(peak)
        while at_s < seconds:
            if rng.random() * peak < rate(at_s):
                yield at_s
            at_s += rng.expovariate(peak)

    return times


def _bursts(size: int, every_s: float, seconds: float) -> Times:
    """`size` jobs within a second, every `every_s` seconds."""

    def times(rng: random.Random) -> Iterator[float]:
        start_s = 60.0
        while start_s < seconds:
            yield from sorted(start_s + rng.random() for _ in range(size))
            start_s += every_s

    return times


def _periods(
    periods: Callable[[random.Random], Iterator[tuple[float, float]]], seconds: float
) -> Times:
    """Periods one after the other; `periods` yields (seconds, arrivals a second) of each."""

    def times(rng: random.Random) -> Iterator[float]:
        start_s = 0.0
        for length_s, rate in periods(rng):
            end_s = min(seconds, start_s + length_s)
            at_s = start_s + rng.expovariate(rate)
            while at_s < end_s:
                yield at_s
                at_s += rng.expovariate(rate)
            start_s = end_s
            if start_s >= seconds:
                return

    return times


def _gusts(rng: random.Random) -> Iterator[tuple[float, float]]:
    """Like code completion: on and off, in busy and quiet times of five minutes each."""
    start_s = 0.0
    for mean_s, rate in cycle([(45.0, 0.3), (30.0, 5.5)]):
        length_s = rng.expovariate(1 / mean_s)
        yield length_s, rate * (1 + 0.5 * math.sin(2 * math.pi * start_s / 600))
        start_s += length_s


def _drift(rng: random.Random) -> Iterator[tuple[float, float]]:
    while True:
        yield rng.uniform(60, 1200), rng.uniform(0.1, 5.0)

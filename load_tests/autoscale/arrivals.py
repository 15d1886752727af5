"""Loads over time for the autoscaler's simulation: when jobs come, and how long each runs.

All are drawn at random, the same for the same seed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import cycle

_JOB_S = 10.0
"""On average."""
_SPREAD = 0.8
"""Of the logarithm of a job's time: one in a hundred runs for more than six times the median."""
TOKENS_PER_S = 50.0
_TOKENS_SPREAD = 0.3
"""How wrong the estimate of a job's tokens is, as a logarithm."""
_DAY_S = 86_400.0

Times = Callable[[random.Random], Iterator[float]]
"""When jobs come, in seconds since the start, rising."""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job."""

    at_s: float
    job_s: float
    """How long it keeps its slot."""
    tokens: float
    """What an observer takes it for while it waits."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A load, and between how many workers a policy may choose."""

    name: str
    about: str
    seconds: float
    times: Times
    least: int = 1
    most: int = 12

    def arrivals(self, seed: int) -> list[Arrival]:
        """The same for the same seed."""
        chance = random.Random(f"{self.name} {seed}")
        centre = math.log(_JOB_S) - _SPREAD**2 / 2
        arrivals = []
        for at_s in list(self.times(chance)):
            job_s = chance.lognormvariate(centre, _SPREAD)
            tokens = TOKENS_PER_S * job_s * chance.lognormvariate(0, _TOKENS_SPREAD)
            arrivals.append(Arrival(at_s, job_s, tokens))
        return arrivals


def shapes() -> Mapping[str, Shape]:
    """By name."""
    known = [
        Shape("step", "0.5, then 4, then 0.5 jobs/s", 5400, poisson(_step, 4, 5400)),
        Shape("ramp", "0.2 to 5 jobs/s and back", 5400, poisson(_ramp, 5, 5400)),
        Shape("day", "24 h, 0.1 jobs/s at night, 2.9 at noon", _DAY_S, poisson(_day, 2.9, _DAY_S)),
        Shape("burst", "400 at once, every half hour", 7200, _bursts(400, 1800, 7200), least=0),
        Shape("spikes", "1 job/s, a minute of 8 each 15", 7200, poisson(_spikes, 8, 7200)),
        Shape("square", "1 and 4 jobs/s, 6 min each", 7200, poisson(_square, 4, 7200)),
        Shape("gusts", "held out: gusts of 30 s, 5.5 jobs/s", 3600, _spells(_gusts, 3600)),
        Shape("drift", "held out: new rate every 1 to 20 min", 14400, _spells(_drift, 14400)),
        Shape("rare", "held out: one job in 200 s", 36000, poisson(_rare, 0.005, 36000), least=0),
    ]
    return {shape.name: shape for shape in known}


def poisson(rate: Callable[[float], float], peak: float, seconds: float) -> Times:
    """Arrivals at `rate(second)` a second, which is never above `peak`."""

    def times(chance: random.Random) -> Iterator[float]:
        at_s = chance.expovariate(peak)
        while at_s < seconds:
            if chance.random() * peak < rate(at_s):
                yield at_s
            at_s += chance.expovariate(peak)

    return times


def _bursts(size: int, every_s: float, seconds: float) -> Times:
    """So many jobs within a second, again and again."""

    def times(chance: random.Random) -> Iterator[float]:
        start_s = 60.0
        while start_s < seconds:
            yield from sorted(start_s + chance.random() for _ in range(size))
            start_s += every_s

    return times


def _spells(
    spells: Callable[[random.Random], Iterator[tuple[float, float]]], seconds: float
) -> Times:
    """One spell after the other, each of so many seconds with so many arrivals a second."""

    def times(chance: random.Random) -> Iterator[float]:
        start_s = 0.0
        for length_s, rate in spells(chance):
            end_s = min(seconds, start_s + length_s)
            at_s = start_s + chance.expovariate(rate)
            while at_s < end_s:
                yield at_s
                at_s += chance.expovariate(rate)
            start_s = end_s
            if start_s >= seconds:
                return

    return times


def _gusts(chance: random.Random) -> Iterator[tuple[float, float]]:
    """As code completion comes: on and off, in busy and calm times of five minutes each."""
    start_s = 0.0
    for mean_s, rate in cycle([(45.0, 0.3), (30.0, 5.5)]):
        length_s = chance.expovariate(1 / mean_s)
        yield length_s, rate * (1 + 0.5 * math.sin(2 * math.pi * start_s / 600))
        start_s += length_s


def _drift(chance: random.Random) -> Iterator[tuple[float, float]]:
    while True:
        yield chance.uniform(60, 1200), chance.uniform(0.1, 5.0)


def _step(at_s: float) -> float:
    return 4.0 if 900 <= at_s < 3600 else 0.5


def _ramp(at_s: float) -> float:
    return max(0.2, 5.0 - abs(at_s - 2700) / 1800 * 4.8)


def _day(at_s: float) -> float:
    return 1.5 - 1.4 * math.cos(2 * math.pi * at_s / _DAY_S)


def _spikes(at_s: float) -> float:
    return 8.0 if at_s % 900 >= 840 else 1.0


def _square(at_s: float) -> float:
    return 4.0 if at_s % 720 >= 360 else 1.0


def _rare(at_s: float) -> float:
    return 0.005

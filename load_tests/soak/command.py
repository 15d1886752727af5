"""`soak`: mixed load on a fleet; checks that nothing grows, no answer is wrong, nothing is left.

One gateway, two simulated workers, a durable Redis. Ended jobs are kept for seconds only, so that
the size of Redis is steady early. Exit status 0: all figures are flat, every answer was right,
nothing is left over. 1: otherwise.
"""

from __future__ import annotations

import argparse
import asyncio
import math
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from load_tests.clients.trial import Trial, errors_of
from load_tests.harness.fleet import Fleet, FleetShape
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.table import Table
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import CLASSES, Mode, chat
from load_tests.oracle.request_source import RequestSource
from load_tests.oracle.stored_job import StoredJob
from load_tests.soak.figures import TENANTS, figures, work
from load_tests.soak.trend import Trend, trend

HELP = "mixed load for half an hour: nothing may grow"

_STEP_MS = 50.0
_LEASE_S = 5.0
_KEPT_S = 30.0
"""How long Redis keeps ended jobs."""
_WARM_UP = 0.2
"""Share of the time that is not evaluated; at least twice the time that ended jobs are kept."""
_TOLERATED_BYTES = 4e6
_TOLERATED_COUNT = 20.0
_DEVIATIONS = 4.0
"""Tolerated growth of a count in standard deviations: the root of its usual value (Poisson)."""
_CLIENT_S = 60.0
_CLEANUP_S = 60.0
_STAYING = {Mode.CALL: 65, Mode.POLLED: 10, Mode.EVENTS: 5}
_LEAVING = {Mode.LEFT: 15, Mode.CANCELLED: 5}
"""How many of a hundred clients do what."""
_LONG = [chat(400, stream=stream) for stream in (True, False)]
"""No client that leaves reads such an answer to its end."""

Sample = Mapping[str, float]
"""Figures by name, among them `seconds` since the start and `cpu_s` of all processes."""


@dataclass(slots=True)
class Answers:
    """What all clients got."""

    right: Counter[str] = field(default_factory=Counter)
    """Clients without an error, by mode."""
    wrong: Counter[str] = field(default_factory=Counter)
    """The others, by class, mode and error."""
    tokens: int = 0
    """Tokens of the answers that were read to their end and right."""

    def add(self, seen: Observation, stored: StoredJob | None) -> None:
        """Add one client."""
        mode = seen.request.mode
        meant = End.LEFT if mode in _LEAVING else End.COMPLETE
        errors = errors_of(seen, stored) if seen.job_id else []
        if seen.end is not meant:
            errors.insert(0, f"{seen.end} {seen.code}")
        if errors:
            self.wrong[f"{seen.request.class_name}, {mode}: {errors[0]}"] += 1
            ago_s, took_s = time.monotonic() - seen.ended, seen.ended - seen.began
            when = f"after {took_s:.1f} s, {ago_s:.1f} s ago"
            print_progress(f"wrong: {seen.job_id}, {when}: {'; '.join(errors)}")
            return
        self.right[mode] += 1
        self.tokens += seen.expected.completion_tokens * seen.complete


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--minutes": (30.0, "duration of the load"),
        "--rate": (16.0, "clients a second"),
        "--every": (15.0, "seconds between samples"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    if 60 * arguments.minutes < 3 * _KEPT_S:
        sys.exit(f"a soak test takes at least {3 * _KEPT_S:.0f} s")
    with session() as processes:
        samples, answers, left = uvloop.run(_run(processes.folder / "fleet", arguments))
    trends = trends_of(samples)
    found = problems(trends, answers, left)
    print_tables([trend_table(trends)])
    print(f"\n{_summary(samples, answers)}")
    save_result(
        arguments.json,
        "soak",
        {
            "clients": {"right": answers.right, "wrong": answers.wrong, "tokens": answers.tokens},
            "leftovers": left,
            "trends": [asdict(item) | {"flat": item.flat} for item in trends],
            "samples": samples,
        },
    )
    print("\n".join(found) or "FLAT")
    return 1 if found else 0


async def _run(
    folder: Path, arguments: argparse.Namespace
) -> tuple[list[Sample], Answers, dict[str, float]]:
    """Return the samples, what clients got, and what is left over. Raises ProcessError."""
    seconds, answers = 60 * arguments.minutes, Answers()
    kept = {"stream_ttl_s": _KEPT_S, "result_ttl_s": _KEPT_S}
    keys = ",".join(f"{tenant}:{key}" for tenant, key in TENANTS.items())
    settings = {"api_keys": keys, **kept}
    shape = FleetShape(2, step_ms=_STEP_MS, lease_s=_LEASE_S, settings=settings)
    source = RequestSource(CLASSES)
    async with Trial(folder, shape, source, answers.add, timeout_s=_CLIENT_S) as trial:
        share = arguments.rate / len(TENANTS) / 100
        for tenant, key in TENANTS.items():
            group = trial.add_clients({"authorization": f"Bearer {key}"})
            for modes, draw in (
                (_STAYING, partial(source.draw, modes=_STAYING)),
                (_LEAVING, partial(source.draw, modes=_LEAVING, classes=_LONG)),
            ):
                rate = share * sum(modes.values())
                arrive = group.arrive(
                    draw, rate=rate, seconds=seconds, seed=f"{tenant}-{len(modes)}"
                )
                trial.add_task(asyncio.create_task(arrive))
        samples = await _samples(trial, answers, seconds, arguments.every)
        await trial.stop()
        return samples, answers, await asyncio.to_thread(_leftovers, trial.fleet)


async def _samples(trial: Trial, answers: Answers, seconds: float, every_s: float) -> list[Sample]:
    """Take a sample every `every_s` seconds. Raises ProcessError if a process ends."""
    fleet, samples = trial.fleet, list[Sample]()
    began, cpu_s, own_s = time.monotonic(), _cpu_s(fleet), time.process_time()
    for n in range(1, int(seconds / every_s) + 1):
        await asyncio.sleep(max(0.0, began + n * every_s - time.monotonic()))
        trial.check()
        for process in fleet.processes:
            process.check()
        sample = {
            "seconds": time.monotonic() - began,
            "cpu_s": _cpu_s(fleet) - cpu_s,
            "clients_cpu_s": time.process_time() - own_s,
            **await asyncio.to_thread(figures, fleet),
        }
        print_progress(f"{_progress_line(sample)}; wrong answers {answers.wrong.total()}")
        samples.append(sample)
    return samples


def _cpu_s(fleet: Fleet) -> float:
    return sum(process.cpu_s() for process in fleet.processes)


def _leftovers(fleet: Fleet) -> dict[str, float]:
    """Wait until Redis holds no trace of jobs; return what is left at the deadline."""
    until = time.monotonic() + _KEPT_S + _CLEANUP_S
    while True:
        left = {name: count for name, count in work(fleet).items() if count}
        if not left or time.monotonic() > until:
            return left
        time.sleep(1)


def trends_of(samples: Sequence[Sample]) -> list[Trend]:
    """Return the trend of each figure that must not grow."""
    warm_up_s = max(_WARM_UP * samples[-1]["seconds"], 2 * _KEPT_S)
    return [
        trend(
            name,
            [(sample["seconds"], sample[name]) for sample in samples],
            warm_up_s=warm_up_s,
            tolerance=_tolerance(name, median(sample[name] for sample in samples)),
        )
        for name in samples[0]
        if name != "seconds" and not name.endswith("cpu_s")
    ]


def _tolerance(name: str, usual: float) -> float:
    if name.endswith("bytes"):
        return _TOLERATED_BYTES
    return max(_TOLERATED_COUNT, _DEVIATIONS * math.sqrt(usual))


def problems(trends: Sequence[Trend], answers: Answers, left: Mapping[str, float]) -> list[str]:
    """Return one line per problem."""
    return [
        *(f"GROWS: {item.name}, {_shown(item)}" for item in trends if not item.flat),
        *(f"WRONG: {count}x {reason}" for reason, count in answers.wrong.items()),
        *(f"LEFT OVER: {count:.0f} {name}" for name, count in left.items()),
        *([] if answers.right else ["WRONG: no client got a right answer"]),
    ]


def trend_table(trends: Sequence[Trend]) -> Table:
    """Return start, end, slope, tolerance and verdict of each figure."""
    rows = []
    for item in trends:
        unit = 1e6 if item.name.endswith("bytes") else 1.0
        name = item.name.replace("bytes", "MB")
        numbers = (item.start, item.end, item.per_hour, item.tolerance)
        shown = [f"{number / unit:.1f}" for number in numbers]
        rows.append([name, *shown, "flat" if item.flat else "GROWS"])
    title = "A line through the samples after the warm-up (Theil and Sen)"
    return Table(title, ["figure", "from", "to", "per hour", "tolerated growth", "verdict"], rows)


def _shown(item: Trend) -> str:
    if item.name.endswith("bytes"):
        return f"from {item.start / 1e6:.1f} to {item.end / 1e6:.1f} MB"
    return f"from {item.start:.0f} to {item.end:.0f}"


def _progress_line(sample: Sample) -> str:
    """Return the line that is printed after a sample."""
    share = sample["cpu_s"] / sample["seconds"]
    sizes = [
        f"{name.removesuffix(' bytes')} {value / 1e6:.1f} MB"
        for name, value in sample.items()
        if name.endswith("bytes")
    ]
    counts = ("Redis keys", "index entries", "open streams", "unfinished jobs")
    shown = [*sizes, *(f"{name} {sample[name]:.0f}" for name in counts)]
    return f"{sample['seconds'] / 60:5.1f} min, {share:.0%} of a core, {', '.join(shown)}"


def _summary(samples: Sequence[Sample], answers: Answers) -> str:
    last = samples[-1]
    fleet, clients = (last[name] / last["seconds"] for name in ("cpu_s", "clients_cpu_s"))
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(answers.right.items()))
    return (
        f"right answers: {kinds}; {answers.tokens} tokens read to the end; "
        f"wrong: {answers.wrong.total()}\n"
        f"CPU: the fleet {fleet:.0%} of a core, the clients {clients:.0%}"
    )

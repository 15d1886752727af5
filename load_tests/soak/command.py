"""Everything at once for half an hour: does anything grow, is an answer wrong, is anything left?

One gateway, two simulated workers, a durable Redis. Ended jobs are kept for seconds only, so that
what Redis holds is steady early. Exit status 0: all is flat, every answer was right, nothing stays
behind; 1: not so.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from statistics import median

from load_tests.bench.report import Table
from load_tests.clients.mixed_client import MixedResult, MixedSpec
from load_tests.harness.processes import Process, ProcessError, Processes, python, wait_for
from load_tests.harness.session import default_path, save, say, session
from load_tests.soak.fleet import TENANTS, SoakFleet
from load_tests.soak.plot import plot
from load_tests.soak.trend import Trend, trend
from load_tests.systems.engine import EngineTiming

HELP = "all kinds of load for a while: does anything grow?"

_TIMING = EngineTiming(step_ms=50, step_us_per_seq=250)
_KEPT_S = 30.0
"""How long ended jobs are kept."""
_WARM_UP = 0.2
"""The part of the time that is not judged, but no less than it takes until jobs are deleted."""
_LEAST_BYTES = 4e6
"""Growth that is none."""
_LEAST_COUNT = 20.0
_DEVIATIONS = 4.0
"""The same of counts: what comes and goes at random varies by the root of how much is there."""
_LAST_CLIENT_S = 120.0
_SWEPT_S = 60.0

Sample = Mapping[str, float]
"""Figures by name; `seconds` since the start and `cpu_s` of all processes are among them."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="of load (default 30)")
    parser.add_argument("--rate", type=float, default=16.0, help="clients a second (default 16)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between samples")
    parser.add_argument("--json", type=Path, help="the results (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="the table in Markdown")


def main(arguments: argparse.Namespace) -> int:
    path: Path = arguments.json or default_path("soak")
    seconds = 60 * arguments.minutes
    if seconds < 3 * _KEPT_S:
        sys.exit(f"in less than {3 * _KEPT_S:.0f} s nothing becomes steady")
    with session() as processes:
        fleet = SoakFleet(processes, _TIMING, _KEPT_S)
        fleet.start()
        clients, result_file = _start_clients(processes, fleet.url, seconds, arguments.rate)
        samples = list(_samples(fleet, clients, seconds, arguments.every))
        wait_for(lambda: clients.popen.poll() is not None, "clients end", (), _LAST_CLIENT_S)
        if not result_file.exists():
            raise ProcessError(f"the clients failed:\n{clients.tail()}")
        clients_saw = MixedResult(**json.loads(result_file.read_text()))
        left = _left_behind(fleet)
    trends = trends_of(samples)
    found = problems(trends, clients_saw, left)
    table = trend_table(trends)
    print(f"\n{table.markdown() if arguments.markdown else table.text()}\n")
    print(_summary(samples, clients_saw))
    save(
        path,
        {
            "clients": asdict(clients_saw),
            "left_behind": left,
            "trends": [asdict(item) | {"flat": item.flat} for item in trends],
            "samples": samples,
        },
    )
    print(f"results: {path}; {plot(samples, path.with_suffix('.png'))}")
    print("\n".join(found) or "FLAT")
    return 1 if found else 0


def _start_clients(
    processes: Processes, url: str, seconds: float, rate: float
) -> tuple[Process, Path]:
    """The process, and the file that it leaves its result in."""
    spec_file, result_file = (processes.folder / f"clients-{of}.json" for of in ("spec", "result"))
    spec = MixedSpec(url, list(TENANTS.values()), seconds, rate)
    spec_file.write_text(json.dumps(asdict(spec)))
    command = python("load_tests.clients.mixed_client", spec_file, result_file)
    return processes.start("clients", "front", command), result_file


def _samples(
    fleet: SoakFleet, clients: Process, seconds: float, every_s: float
) -> Iterator[Sample]:
    """Until the time is over. Raises ProcessError if a process of the fleet ends."""
    began = time.monotonic()
    cpu_s = fleet.cpu_s()
    for n in range(1, int(seconds / every_s) + 1):
        time.sleep(max(0.0, began + n * every_s - time.monotonic()))
        _check(fleet)
        now_s = fleet.cpu_s()
        sample = {
            "seconds": time.monotonic() - began,
            "cpu_s": sum(now_s.values()) - sum(cpu_s.values()),
            **fleet.figures(),
        }
        wrong = clients.log.read_text(errors="replace").count("\n")
        say(f"{_line(sample)}; wrong answers {wrong}")
        yield sample


def _left_behind(fleet: SoakFleet) -> dict[str, float]:
    """What has not gone some time after the last job. Raises ProcessError."""
    until = time.monotonic() + _KEPT_S + _SWEPT_S
    while True:
        _check(fleet)
        left = {name: count for name, count in fleet.work().items() if count}
        if not left or time.monotonic() > until:
            return left
        time.sleep(1)


def _check(fleet: SoakFleet) -> None:
    """Raises ProcessError if a process has ended."""
    for process in fleet.processes:
        process.check()


def trends_of(samples: Sequence[Sample]) -> list[Trend]:
    """Of every figure that may not grow."""
    warm_up_s = max(_WARM_UP * samples[-1]["seconds"], 2 * _KEPT_S)
    return [
        trend(
            name,
            [(sample["seconds"], sample[name]) for sample in samples],
            warm_up_s=warm_up_s,
            least=_least(name, median(sample[name] for sample in samples)),
        )
        for name in samples[0]
        if name not in ("seconds", "cpu_s")
    ]


def _least(name: str, usual: float) -> float:
    if name.endswith("bytes"):
        return _LEAST_BYTES
    return max(_LEAST_COUNT, _DEVIATIONS * math.sqrt(usual))


def problems(trends: Sequence[Trend], clients: MixedResult, left: Mapping[str, float]) -> list[str]:
    """Everything that is not as it must be, a line each."""
    return [
        *(f"GROWS: {item.name}, {_shown(item)}" for item in trends if not item.flat),
        *(f"WRONG: {count}x {reason}" for reason, count in clients.wrong.items()),
        *(f"LEFT BEHIND: {count:.0f} {name}" for name, count in left.items()),
        *([] if clients.right else ["WRONG: no client got anything"]),
    ]


def trend_table(trends: Sequence[Trend]) -> Table:
    """From, to and verdict of every figure."""
    rows = []
    for item in trends:
        unit = 1e6 if item.name.endswith("bytes") else 1.0
        name = item.name.replace("bytes", "MB")
        numbers = (item.start, item.end, item.per_hour, item.bound)
        shown = [f"{number / unit:.1f}" for number in numbers]
        rows.append([name, *shown, "flat" if item.flat else "GROWS"])
    title = "What a line through the samples says, without the warm-up (Theil and Sen)"
    return Table(title, ["figure", "from", "to", "per hour", "may grow by", "verdict"], rows)


def _shown(item: Trend) -> str:
    if item.name.endswith("bytes"):
        return f"from {item.start / 1e6:.1f} to {item.end / 1e6:.1f} MB"
    return f"from {item.start:.0f} to {item.end:.0f}"


def _line(sample: Sample) -> str:
    """A sample, for those who watch."""
    share = sample["cpu_s"] / sample["seconds"]
    sizes = [
        f"{name.removesuffix(' bytes')} {value / 1e6:.1f} MB"
        for name, value in sample.items()
        if name.endswith("bytes")
    ]
    counts = ("Redis keys", "index entries", "open streams", "unfinished jobs")
    shown = [*sizes, *(f"{name} {sample[name]:.0f}" for name in counts)]
    return f"{sample['seconds'] / 60:5.1f} min, {share:.0%} of a core, {', '.join(shown)}"


def _summary(samples: Sequence[Sample], clients: MixedResult) -> str:
    share = samples[-1]["cpu_s"] / samples[-1]["seconds"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(clients.right.items()))
    return (
        f"right answers: {kinds}; {clients.tokens} tokens read to the end; "
        f"wrong: {sum(clients.wrong.values())}\n"
        f"CPU: the fleet {share:.0%} of a core, the clients {clients.cpu_s / clients.seconds:.0%}"
    )

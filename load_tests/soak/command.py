"""`soak`: mixed load on a fleet; checks that nothing grows, no answer is wrong, nothing is left.

One gateway, two simulated workers, a durable Redis. Ended jobs are kept for seconds only, so that
the size of Redis is steady early. Exit status 0: all figures are flat, every answer was right,
nothing is left over. 1: otherwise.
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

from load_tests.clients.mixed_client import MixedResult, MixedSpec
from load_tests.harness.errors import ProcessError
from load_tests.harness.processes import Process, Processes, python_command, wait_for
from load_tests.harness.session import print_progress, result_path, save_result, session
from load_tests.harness.table import Table
from load_tests.soak.fleet import TENANTS, SoakFleet
from load_tests.soak.plot import plot
from load_tests.soak.trend import Trend, trend
from load_tests.systems.engine import EngineTiming

HELP = "mixed load for half an hour: nothing may grow"

_TIMING = EngineTiming(step_ms=50, step_us_per_seq=250)
_KEPT_S = 30.0
"""How long Redis keeps ended jobs."""
_WARM_UP = 0.2
"""Share of the time that is not evaluated; at least twice the time that ended jobs are kept."""
_TOLERATED_BYTES = 4e6
_TOLERATED_COUNT = 20.0
_DEVIATIONS = 4.0
"""Tolerated growth of a count in standard deviations: the root of its usual value (Poisson)."""
_LAST_CLIENT_S = 120.0
_CLEANUP_S = 60.0

Sample = Mapping[str, float]
"""Figures by name, among them `seconds` since the start and `cpu_s` of all processes."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    parser.add_argument(
        "--minutes", type=float, default=30.0, help="duration of the load (default 30)"
    )
    parser.add_argument("--rate", type=float, default=16.0, help="clients a second (default 16)")
    parser.add_argument("--every", type=float, default=15.0, help="seconds between samples")
    parser.add_argument("--json", type=Path, help="result file (default load_tests/results/...)")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    path: Path = arguments.json or result_path("soak")
    seconds = 60 * arguments.minutes
    if seconds < 3 * _KEPT_S:
        sys.exit(f"a soak test takes at least {3 * _KEPT_S:.0f} s")
    with session() as processes:
        fleet = SoakFleet(processes, _TIMING, _KEPT_S)
        fleet.start()
        clients, result_file = _start_clients(processes, fleet.url, seconds, arguments.rate)
        samples = list(_samples(fleet, clients, seconds, arguments.every))
        wait_for(lambda: clients.popen.poll() is not None, "clients end", (), _LAST_CLIENT_S)
        if not result_file.exists():
            raise ProcessError(f"the clients failed:\n{clients.tail()}")
        clients_result = MixedResult(**json.loads(result_file.read_text()))
        left = _leftovers(fleet)
    trends = trends_of(samples)
    found = problems(trends, clients_result, left)
    table = trend_table(trends)
    print(f"\n{table.render(markdown=arguments.markdown)}\n")
    print(_summary(samples, clients_result))
    save_result(
        path,
        {
            "clients": asdict(clients_result),
            "leftovers": left,
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
    """Return the clients' process, and the file into which it writes its result."""
    spec_file, result_file = (processes.folder / f"clients-{of}.json" for of in ("spec", "result"))
    spec = MixedSpec(url, list(TENANTS.values()), seconds, rate)
    spec_file.write_text(json.dumps(asdict(spec)))
    command = python_command("load_tests.clients.mixed_client", spec_file, result_file)
    return processes.start("clients", "front", command), result_file


def _samples(
    fleet: SoakFleet, clients: Process, seconds: float, every_s: float
) -> Iterator[Sample]:
    """Yield a sample every `every_s` seconds. Raises ProcessError if a process ends."""
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
        print_progress(f"{_progress_line(sample)}; wrong answers {wrong}")
        yield sample


def _leftovers(fleet: SoakFleet) -> dict[str, float]:
    """Wait until Redis holds no trace of jobs; return what is left at the deadline.

    Raises ProcessError.
    """
    until = time.monotonic() + _KEPT_S + _CLEANUP_S
    while True:
        _check(fleet)
        left = {name: count for name, count in fleet.work().items() if count}
        if not left or time.monotonic() > until:
            return left
        time.sleep(1)


def _check(fleet: SoakFleet) -> None:
    """Raise ProcessError if a process of the fleet has ended."""
    for process in fleet.processes:
        process.check()


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
        if name not in ("seconds", "cpu_s")
    ]


def _tolerance(name: str, usual: float) -> float:
    if name.endswith("bytes"):
        return _TOLERATED_BYTES
    return max(_TOLERATED_COUNT, _DEVIATIONS * math.sqrt(usual))


def problems(trends: Sequence[Trend], clients: MixedResult, left: Mapping[str, float]) -> list[str]:
    """Return one line per problem."""
    return [
        *(f"GROWS: {item.name}, {_shown(item)}" for item in trends if not item.flat),
        *(f"WRONG: {count}x {reason}" for reason, count in clients.wrong.items()),
        *(f"LEFT OVER: {count:.0f} {name}" for name, count in left.items()),
        *([] if clients.right else ["WRONG: no client got a right answer"]),
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


def _summary(samples: Sequence[Sample], clients: MixedResult) -> str:
    share = samples[-1]["cpu_s"] / samples[-1]["seconds"]
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(clients.right.items()))
    return (
        f"right answers: {kinds}; {clients.tokens} tokens read to the end; "
        f"wrong: {sum(clients.wrong.values())}\n"
        f"CPU: the fleet {share:.0%} of a core, the clients {clients.cpu_s / clients.seconds:.0%}"
    )

"""The tables that `run` prints."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median

from load_tests.bench.figures import BASE, Figures
from load_tests.bench.targets import TargetResult, Verdict
from load_tests.harness.spread import NOT_MEASURED, show_median, show_spread
from load_tests.harness.table import Table


def tables(figures: Figures, results: Sequence[TargetResult]) -> list[Table]:
    """Return growth, main and target table."""
    return [_growth(figures), _main(figures), _targets(results)]


def heading(figures: Figures) -> str:
    """Return a line with date, machine, versions and disturbance of a run."""
    machine = figures.results.machine
    shares = sorted(measurement.stolen for measurement in figures.results.measurements)
    stolen = f"{shares[0]:.0%} to {shares[-1]:.0%} (median {median(shares):.0%})" if shares else "?"
    return (
        f"{machine['date']}: {machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, Redis {machine['redis']}; load average "
        f"{machine['load_average']:.1f} at the start; its host took {stolen} of its CPU "
        "time (steal)"
    )


def _main(figures: Figures) -> Table:
    def of(point: str, quantity: str, digits: int) -> list[str]:
        return [show_median(figures.of(point, each, quantity), digits) for each in systems]

    def ratio(point: str, quantity: str) -> list[str]:
        return [show_median(figures.ratio(point, each, quantity), 2) for each in systems]

    def ttft(point: str) -> list[str]:
        pairs = zip(of(point, "ttft_p50_ms", 1), of(point, "ttft_p99_ms", 1), strict=True)
        return [NOT_MEASURED if p50 == NOT_MEASURED else f"{p50}/{p99}" for p50, p99 in pairs]

    systems = figures.systems
    log_bytes = [figures.results.log_bytes.get(system) for system in systems]
    columns = {
        "system": systems,
        "TTFT+ c=1\np50/p99 ms": ttft("c1"),
        "TTFT+ c=64\np50/p99 ms": ttft("c64"),
        "jitter c=64\nsd ms": of("c64", "gap_sd_ms", 1),
        "limit\ntok/s": of("sat64", "tokens_per_s", 0),
        "limit\nreq/s": of("req64", "requests_per_s", 0),
        "CPU us/token c=64\nby process*": [_parts(figures, "c64", each) for each in systems],
        "total": of("c64", "total_us", 0),
        f"/ {BASE}\nfront": ratio("c64", "front_us"),
        f"/ {BASE}\ntotal": ratio("c64", "total_us"),
        "CPU us/request c=64\nby process*": [_parts(figures, "req64", each) for each in systems],
        "total ": of("req64", "total_us", 0),
        f"/ {BASE}\ntotal ": ratio("req64", "total_us"),
        "Redis/token\ncommands": of("c64", "redis_commands", 2),
        "Redis/token\nbytes": of("c64", "redis_bytes", 0),
        "log\nB/token": [NOT_MEASURED if n is None else f"{n:.0f}" for n in log_bytes],
        "KB per open\nstream*": [_memory(figures, each) for each in systems],
    }
    title = (
        "Medians over rounds; ratios are paired within a round. TTFT+ is the time to first "
        "token beyond one engine step. *: by process, in the order of the table above."
    )
    return Table.of_columns(title, columns)


def _growth(figures: Figures) -> Table:
    points = figures.points
    rows = [
        [
            f"{system} ({'/'.join(figures.processes(system))})",
            *(show_spread(figures.of(point, system, "total_us"), 0) for point in points),
        ]
        for system in figures.systems
    ]
    title = "CPU us per token or request of all processes: median (quartiles) over the rounds"
    return Table(title, ["system", *points], rows)


def _targets(results: Sequence[TargetResult]) -> Table:
    missed = Verdict.MISSED
    columns = {
        "target": [each.target.name for each in results],
        "measured": [show_spread(each.measured) for each in results],
        "limit <=": [f"{each.target.limit:g}" for each in results],
        "goal <=": [f"{each.target.goal:g}" for each in results],
        "unit": [each.target.unit for each in results],
        "verdict": [
            each.verdict.value.upper() if each.verdict is missed else each.verdict.value
            for each in results
        ],
    }
    return Table.of_columns("Targets", columns)


def _parts(figures: Figures, point: str, system: str) -> str:
    parts = [show_median(figures.process(point, system, p), 0) for p in figures.processes(system)]
    return "+".join(parts) if figures.measured(point, system) else NOT_MEASURED


def _memory(figures: Figures, system: str) -> str:
    per_stream = figures.results.stream_memory.get(system)
    if not per_stream:
        return NOT_MEASURED
    return "+".join(f"{per_stream[label] / 1e3:.1f}" for label in figures.processes(system))

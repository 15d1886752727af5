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
    return (
        f"{machine['date']}: {machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, Redis {machine['redis']}; load average "
        f"{machine['load_average']:.1f} at the start; its host took {_stolen(figures)} of its CPU "
        "time (steal)"
    )


def _stolen(figures: Figures) -> str:
    shares = sorted(measurement.stolen for measurement in figures.results.measurements)
    return f"{shares[0]:.0%} to {shares[-1]:.0%} (median {median(shares):.0%})" if shares else "?"


def _main(figures: Figures) -> Table:
    head = [
        "system",
        "TTFT+ c=1\np50/p99 ms",
        "TTFT+ c=64\np50/p99 ms",
        "jitter c=64\nsd ms",
        "limit\ntok/s",
        "limit\nreq/s",
        "CPU us/token c=64\nby process*",
        "total",
        f"/ {BASE}\nfront",
        f"/ {BASE}\ntotal",
        "CPU us/request c=64\nby process*",
        "total",
        f"/ {BASE}\ntotal",
        "Redis/token\ncommands",
        "Redis/token\nbytes",
        "log\nB/token",
        "KB per open\nstream*",
    ]
    rows = []
    for system in figures.systems:
        log_bytes = figures.results.log_bytes.get(system)
        rows.append(
            [
                system,
                _pair(figures, "c1", system),
                _pair(figures, "c64", system),
                show_median(figures.of("c64", system, "gap_sd_ms"), 1),
                show_median(figures.of("sat64", system, "tokens_per_s"), 0),
                show_median(figures.of("req64", system, "requests_per_s"), 0),
                _parts(figures, "c64", system),
                show_median(figures.of("c64", system, "total_us"), 0),
                show_median(figures.ratio("c64", system, "front_us"), 2),
                show_median(figures.ratio("c64", system, "total_us"), 2),
                _parts(figures, "req64", system),
                show_median(figures.of("req64", system, "total_us"), 0),
                show_median(figures.ratio("req64", system, "total_us"), 2),
                show_median(figures.of("c64", system, "redis_commands"), 2),
                show_median(figures.of("c64", system, "redis_bytes"), 0),
                NOT_MEASURED if log_bytes is None else f"{log_bytes:.0f}",
                _memory(figures, system),
            ]
        )
    title = (
        "Medians over rounds; ratios are paired within a round. TTFT+ is the time to first "
        "token beyond one engine step. *: by process, in the order of the table above."
    )
    return Table(title, head, rows)


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
    rows = [
        [
            result.target.name,
            show_spread(result.measured, result.target.digits),
            f"{result.target.limit:g}",
            f"{result.target.goal:g}",
            result.target.unit,
            result.verdict.value.upper()
            if result.verdict is Verdict.MISSED
            else result.verdict.value,
        ]
        for result in results
    ]
    return Table("Targets", ["target", "measured", "limit <=", "goal <=", "unit", "verdict"], rows)


def _pair(figures: Figures, point: str, system: str) -> str:
    p50 = figures.of(point, system, "ttft_p50_ms")
    p99 = figures.of(point, system, "ttft_p99_ms")
    return NOT_MEASURED if p50 is None else f"{show_median(p50, 1)}/{show_median(p99, 1)}"


def _parts(figures: Figures, point: str, system: str) -> str:
    parts = [show_median(figures.process(point, system, p), 0) for p in figures.processes(system)]
    return "+".join(parts) if figures.measured(point, system) else NOT_MEASURED


def _memory(figures: Figures, system: str) -> str:
    per_stream = figures.results.stream_memory.get(system)
    if not per_stream:
        return NOT_MEASURED
    return "+".join(f"{per_stream[label] / 1e3:.1f}" for label in figures.processes(system))

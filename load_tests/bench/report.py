"""The results as a table, in plain text and in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from load_tests.bench.figures import BASE, Figures, Spread
from load_tests.bench.targets import Judgement, Verdict

_NONE = "-"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text; the first column is aligned to the left, the others to the right."""

    title: str
    head: Sequence[str]
    """A column's name may have several lines."""
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        """For a terminal."""
        heads = [name.split("\n") for name in self.head]
        depth = max(len(lines) for lines in heads)
        top = [[""] * (depth - len(lines)) + lines for lines in heads]
        lines = [*zip(*top, strict=True), *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.head))]
        ruled = [_aligned(line, widths) for line in lines]
        ruled.insert(depth, "-" * max(map(len, ruled)))
        return "\n".join([self.title, "", *ruled])

    def markdown(self) -> str:
        """For a README."""
        head = [name.replace("\n", " ") for name in self.head]
        rule = ["---", *["---:"] * (len(head) - 1)]
        rows = [f"| {' | '.join(cells)} |" for cells in (head, rule, *self.rows)]
        return "\n".join([f"**{self.title}**", "", *rows])


def tables(figures: Figures, judgements: Sequence[Judgement]) -> list[Table]:
    """What a run shows, the verdict last."""
    return [_growth(figures), _main(figures), _targets(judgements)]


def heading(figures: Figures) -> str:
    """Where and when."""
    machine = figures.results.machine
    return (
        f"{machine['date']}: {machine['cores']} x {machine['cpu']}, Linux {machine['kernel']}, "
        f"Python {machine['python']}, Redis {machine['redis']}; load average "
        f"{machine['load_average']:.1f} at the start; its host gave {_stolen(figures)} of its CPU "
        "time to others"
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
                _cell(figures.of("c64", system, "gap_sd_ms"), 1),
                _cell(figures.of("sat64", system, "tokens_per_s"), 0),
                _cell(figures.of("req64", system, "requests_per_s"), 0),
                _parts(figures, "c64", system),
                _cell(figures.of("c64", system, "total_us"), 0),
                _cell(figures.ratio("c64", system, "front_us"), 2),
                _cell(figures.ratio("c64", system, "total_us"), 2),
                _parts(figures, "req64", system),
                _cell(figures.of("req64", system, "total_us"), 0),
                _cell(figures.ratio("req64", system, "total_us"), 2),
                _cell(figures.of("c64", system, "redis_commands"), 2),
                _cell(figures.of("c64", system, "redis_bytes"), 0),
                _NONE if log_bytes is None else f"{log_bytes:.0f}",
                _memory(figures, system),
            ]
        )
    title = (
        "Medians over rounds; ratios are paired within a round. TTFT+ is what comes on top of the "
        "engine's step. *: by process, in the order of the table above."
    )
    return Table(title, head, rows)


def _growth(figures: Figures) -> Table:
    points = figures.points
    rows = [
        [
            f"{system} ({'/'.join(figures.processes(system))})",
            *(_with_range(figures.of(point, system, "total_us")) for point in points),
        ]
        for system in figures.systems
    ]
    title = "CPU us per token or request of all processes: median (quartiles) over the rounds"
    return Table(title, ["system", *points], rows)


def _targets(judgements: Sequence[Judgement]) -> Table:
    rows = [
        [
            judgement.target.name,
            _with_range(judgement.measured, judgement.target.digits),
            f"{judgement.target.must:g}",
            f"{judgement.target.aim:g}",
            judgement.target.unit,
            judgement.verdict.value.upper()
            if judgement.verdict is Verdict.MISSED
            else judgement.verdict.value,
        ]
        for judgement in judgements
    ]
    return Table("Targets", ["target", "measured", "must <=", "aim <=", "unit", "verdict"], rows)


def _cell(spread: Spread | None, digits: int) -> str:
    return _NONE if spread is None else f"{spread.median:.{digits}f}"


def _with_range(spread: Spread | None, digits: int = 0) -> str:
    if spread is None:
        return _NONE
    if spread.n == 1:
        return f"{spread.median:.{digits}f}"
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f}..{spread.high:.{digits}f})"


def _pair(figures: Figures, point: str, system: str) -> str:
    p50 = figures.of(point, system, "ttft_p50_ms")
    p99 = figures.of(point, system, "ttft_p99_ms")
    return _NONE if p50 is None else f"{_cell(p50, 1)}/{_cell(p99, 1)}"


def _parts(figures: Figures, point: str, system: str) -> str:
    parts = [_cell(figures.process(point, system, p), 0) for p in figures.processes(system)]
    return "+".join(parts) if figures.measured(point, system) else _NONE


def _memory(figures: Figures, system: str) -> str:
    per_stream = figures.results.stream_memory.get(system)
    if not per_stream:
        return _NONE
    return "+".join(f"{per_stream[label] / 1e3:.1f}" for label in figures.processes(system))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *rest = (
        cell.rjust(width) if column else cell.ljust(width)
        for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
    )
    return "  ".join([first, *rest]).rstrip()

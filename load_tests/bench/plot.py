"""A run's results as a picture: CPU time per token and per request, and its growth with streams."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

from load_tests.bench.figures import Figures
from load_tests.harness.picture import save_picture

_COLOURS = {"engine": "#b8c4d0", "gateway": "#2b6cb0", "redis": "#c0392b", "proxy": "#d98e04"}
_OTHER = "#777777"
_BARS = (("c64", "CPU per token, 64 streams"), ("req64", "CPU per short request, 64 at once"))
_STREAMS = ("c1", "c16", "c64", "c256", "c1024")


def plot(figures: Figures, path: Path) -> str:
    """Write a PNG file; return a line that says where it is, or why there is none."""
    bars = [partial(_bars, figures, point, title) for point, title in _BARS]
    return save_picture(path, 17, [*bars, partial(_growth, figures)])


def _bars(figures: Figures, point: str, title: str, axis: Any) -> None:
    """Draw one bar per system, made up of its processes."""
    systems = [system for system in figures.systems if figures.measured(point, system)]
    labelled = set()
    for row, system in enumerate(systems):
        left = 0.0
        for label in reversed(figures.processes(system)):
            spread = figures.process(point, system, label)
            width = spread.median if spread else 0.0
            name = None if label in labelled else label
            axis.barh(row, width, left=left, color=_COLOURS.get(label, _OTHER), label=name)
            labelled.add(label)
            left += width
        axis.text(left, row, f" {left:.0f}", va="center")
    axis.set_yticks(range(len(systems)), systems)
    axis.invert_yaxis()
    axis.set_xlabel("microseconds of CPU")
    axis.set_title(title)
    axis.margins(x=0.12)
    if labelled:
        axis.legend()


def _growth(figures: Figures, axis: Any) -> None:
    """Draw a line per system over the number of streams."""
    for system in figures.systems:
        spreads = [(point, figures.of(point, system, "total_us")) for point in _STREAMS]
        known = [(int(point[1:]), spread) for point, spread in spreads if spread]
        if known:
            counts = [count for count, _ in known]
            axis.plot(counts, [spread.median for _, spread in known], marker="o", label=system)
            lows, highs = [s.low for _, s in known], [s.high for _, s in known]
            axis.fill_between(counts, lows, highs, alpha=0.15)
    axis.set_xscale("log", base=2)
    axis.set_yscale("log")
    axis.set_xlabel("streams at once")
    axis.set_ylabel("microseconds of CPU per token, all processes")
    axis.set_title("Growth (median and quartiles)")
    if axis.lines:
        axis.legend()

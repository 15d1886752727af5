"""A soak test's figures over time, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from load_tests.harness.picture import save_picture

Samples = Sequence[Mapping[str, float]]
"""In order of time; `seconds` is one of the figures."""

_PANELS: tuple[tuple[str | tuple[str, ...], str, float], ...] = (
    ("RSS bytes", "resident memory, MB", 1e6),
    ("used_memory bytes", "Redis used_memory, MB", 1e6),
    ("open files", "open files", 1.0),
    (("keys", "entries"), "keys and index entries in Redis", 1.0),
    (("streams", "jobs", "slots"), "open streams, unfinished jobs, busy slots", 1.0),
)
"""Ending of the names of a diagram's figures, its title, and the divisor of its values."""


def plot(samples: Samples, path: Path) -> str:
    """Write a PNG file; return a line that says where it is, or why there is none."""
    return save_picture(path, 25, [partial(_panel, samples, *panel) for panel in _PANELS])


def _panel(
    samples: Samples, ending: str | tuple[str, ...], title: str, divisor: float, axis: Any
) -> None:
    minutes = [sample["seconds"] / 60 for sample in samples]
    for name in samples[0]:
        if name.endswith(ending):
            values = [sample[name] / divisor for sample in samples]
            axis.plot(minutes, values, label=name.removesuffix(" bytes"))
    axis.set_title(title)
    axis.set_xlabel("minutes")
    axis.set_ylim(bottom=0)
    axis.legend(fontsize="small")

"""A soak test as a picture: every figure over time. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path

Samples = Sequence[Mapping[str, float]]
"""In order of time; `seconds` is one of the figures."""

_PANELS: tuple[tuple[str | tuple[str, ...], str, float], ...] = (
    ("RSS bytes", "resident memory, MB", 1e6),
    ("used_memory bytes", "Redis used_memory, MB", 1e6),
    ("open files", "open files", 1.0),
    (("keys", "entries"), "keys and entries of indices in Redis", 1.0),
    (("streams", "jobs", "slots"), "in hand", 1.0),
)
"""How the names of a panel's figures end, its title, and the unit it is in."""


def plot(samples: Samples, path: Path) -> str:
    """Write a PNG; a line that says what became of it."""
    try:
        import_module("matplotlib").use("Agg")
        plt = import_module("matplotlib.pyplot")
    except ImportError:
        return "no picture: matplotlib is not installed"
    drawing, axes = plt.subplots(1, len(_PANELS), figsize=(25, 5), layout="constrained")
    minutes = [sample["seconds"] / 60 for sample in samples]
    for axis, (ending, title, unit) in zip(axes, _PANELS, strict=True):
        for name in samples[0]:
            if name.endswith(ending):
                values = [sample[name] / unit for sample in samples]
                axis.plot(minutes, values, label=name.removesuffix(" bytes"))
        axis.set_title(title)
        axis.set_xlabel("minutes")
        axis.set_ylim(bottom=0)
        axis.legend(fontsize="small")
    drawing.savefig(path, dpi=110)
    plt.close(drawing)
    return f"picture: {path}"

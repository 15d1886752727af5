"""A row of diagrams as a PNG file. Needs matplotlib, which only `make load` installs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any


def save_picture(path: Path, width: int, draw: Sequence[Callable[[Any], None]]) -> str:
    """Draw one diagram per function side by side and write a PNG file.

    Each function of `draw` gets a matplotlib axis. `width` is the picture's width in inches.
    Returns a line that says where the picture is, or why there is none.
    """
    try:
        import_module("matplotlib").use("Agg")
        plt = import_module("matplotlib.pyplot")
    except ImportError:
        return "no picture: matplotlib is not installed"
    drawing, axes = plt.subplots(1, len(draw), figsize=(width, 5), layout="constrained")
    for axis, draw_one in zip(axes, draw, strict=True):
        draw_one(axis)
    drawing.savefig(path, dpi=110)
    plt.close(drawing)
    return f"picture: {path}"

"""How far a benchmark is: one line on a terminal, nothing elsewhere."""

from __future__ import annotations

import contextlib
import sys
import time

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from gateway.bench.load import Run

# Drawing takes this process's time, which the measured times would contain.
_TIMES_A_SECOND = 4.0


def progress(
    run: Run, total: int | None, seconds: float | None
) -> contextlib.AbstractContextManager[object]:
    """Show `run` while the context lasts. `total` requests, or as many as go into `seconds`."""
    if not sys.stderr.isatty():
        return contextlib.nullcontext()
    began = time.monotonic()

    def line() -> Table:
        elapsed = time.monotonic() - began
        done = len(run.outcomes)
        failed = sum(1 for outcome in run.outcomes if outcome.error)
        tokens = sum(outcome.output_tokens for outcome in run.outcomes)
        made = Table.grid(padding=(0, 2))
        share = (total, done) if total else (seconds or 1.0, elapsed)
        made.add_row(
            ProgressBar(total=share[0], completed=min(share), width=30),
            f"{elapsed:5.0f} s",
            f"{done:>6} done",
            f"{failed:>4} failed",
            f"{run.open:>5} open",
            f"{tokens / max(elapsed, 1e-3):>8.0f} tokens/s",
        )
        return made

    return Live(
        console=Console(stderr=True),
        get_renderable=line,
        refresh_per_second=_TIMES_A_SECOND,
        transient=True,
    )

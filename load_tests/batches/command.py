"""`batch`: what a line costs, how busy engines are, chats beside a batch; all simulated.

Exit status 1: a target of the README was missed, or an answer is wrong.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from load_tests.batches import chat, cost
from load_tests.batches.large import large_run
from load_tests.harness.session import (
    OUTPUT,
    add_options,
    parse_names,
    print_progress,
    print_tables,
    save_result,
    session,
)
from load_tests.harness.table import Table
from tests.harness.fleet import Stack

HELP = "batches: cost of a line, busy engines, chats beside a batch"

_LINES_S = 1000.0
_RATIO = 1.3
_BUSY = 0.95
_LATER_S = 2 * chat.STEP_MS / 1e3 + 0.02
"""By how much a batch may delay the first token of a chat, at p95."""
_STEADY_RATIO = 1.2
_LONGER = 1.06
"""How many times as long a batch that makes room may take."""

_CREATED_S = 10.0
"""From the creation of a batch of a million lines to its first answer."""
_MOST_MB = {"redis": 100.0, "gateway": 32.0, "maintenance": 250.0}

Verdict = tuple[Table, dict[str, Any], list[str]]
"""A table, the figures, missed targets."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's options."""
    options = {
        "--parts": (_DEFAULT, f"of {', '.join(PARTS)}"),
        "--lines": (20_000, "of a batch of `cost`"),
        "--rounds": (3, "of `cost`"),
        "--lines-a-slot": (12, "of `busy`"),
        "--large-lines": (1_000_000, "of the batch of `large`, with 0.5 kB each"),
    }
    add_options(parser, {**options, **OUTPUT})


def main(arguments: argparse.Namespace) -> int:
    """Run the command; return its exit status."""
    figures, missed = dict[str, Any](), list[str]()
    for name in parse_names(arguments.parts, PARTS):
        with session() as processes:
            table, figures[name], not_met = PARTS[name](processes, arguments)
        print_tables([table], arguments)
        missed += not_met
    save_result(arguments.json, "batch", figures)
    print_progress("; ".join(missed) or "all targets met")
    return 1 if missed else 0


def _cost(processes: Stack, arguments: argparse.Namespace) -> Verdict:
    costs = cost.line_costs(processes, arguments.lines, arguments.rounds)
    lines_s, total_us, ratio = cost.medians(costs)
    row = [f"{lines_s:.0f}", f"{total_us:.0f}", f"{ratio:.2f}"]
    table = Table(
        f"Lines with answers of one token (medians of {arguments.rounds} rounds)",
        ["", "lines/s", "CPU us\na line", "x a short\nrequest"],
        [["batch", *row]],
    )
    missed = [f"{lines_s:.0f} lines/s, not {_LINES_S:.0f}"] * (lines_s < _LINES_S)
    missed += [f"a line costs {ratio:.2f} x a short request, not {_RATIO}"] * (ratio > _RATIO)
    return table, {"rounds": [asdict(each) for each in costs]}, missed


def _busy(processes: Stack, arguments: argparse.Namespace) -> Verdict:
    share = cost.busy_share(processes, arguments.lines_a_slot)
    table = Table(
        "128 slots, answers of 64 tokens", ["", "engine in use"], [["batch", f"{share:.1%}"]]
    )
    missed = [f"the engine is {share:.1%} busy, not {_BUSY:.0%}"] * (share < _BUSY)
    return table, {"share": share}, missed


def _bursts(processes: Stack, arguments: argparse.Namespace) -> Verdict:
    runs, different = chat.chat_runs(processes, steady=False)
    alone, beside, unyielding = runs
    missed = _common(runs, different)
    later_s = beside.ttft_p95_s - alone.ttft_p95_s
    missed += [f"first tokens come {later_s:.3f} s later, not {_LATER_S}"] * (later_s > _LATER_S)
    longer = beside.batch_s / unyielding.batch_s
    missed += [f"the batch takes {longer:.3f} x as long, not {_LONGER}"] * (longer > _LONGER)
    return _chat_table("Bursts of chats", runs), {"runs": list(map(asdict, runs))}, missed


def _steady(processes: Stack, arguments: argparse.Namespace) -> Verdict:
    runs, different = chat.chat_runs(processes, steady=True)
    alone, beside, _ = runs
    missed = _common(runs, different)
    bound_s = _STEADY_RATIO * alone.ttft_p99_s + chat.STEP_MS / 1e3
    missed += [f"TTFT p99 is {beside.ttft_p99_s:.3f} s, not {bound_s:.3f}"] * (
        beside.ttft_p99_s > bound_s
    )
    return _chat_table("Steady chats", runs), {"runs": list(map(asdict, runs))}, missed


def _large(processes: Stack, arguments: argparse.Namespace) -> Verdict:
    run = large_run(processes, arguments.large_lines)
    figures = {
        "MB": run.file_mb,
        "upload\ns": run.upload_s,
        "first\nanswer s": run.first_answer_s,
        "cancelled\ns": run.cancelled_s,
        **{f"{name}\nMB": run.grown_mb[name] for name in _MOST_MB},
    }
    row = [f"{run.lines:,}", *(f"{value:.0f}" for value in figures.values())]
    missed = [
        f"{name} grew by {run.grown_mb[name]:.0f} MB, not {most:.0f}"
        for name, most in _MOST_MB.items()
        if run.grown_mb[name] > most
    ]
    bound_s = _CREATED_S * max(1.0, run.lines / 1e6)
    missed += [f"the first answer came after {run.first_answer_s:.1f} s, not {bound_s:.0f}"] * (
        run.first_answer_s > bound_s
    )
    return Table("A large batch", ["lines", *figures], [row]), asdict(run), missed


def _common(runs: Sequence[chat.ChatRun], different: int) -> list[str]:
    beside = runs[1]
    missed = [f"{different} answers differ"] * (different > 0)
    twice = beside.decoded_again / max(1.0, beside.yields)
    return missed + [f"{twice:.2f} tokens per yield are generated twice"] * (twice > 1)


def _chat_table(title: str, runs: Sequence[chat.ChatRun]) -> Table:
    head = ["", "TTFT\np50 s", "p95", "p99", "batch\ns", "yields", "tokens\ntwice"]
    rows = [
        [
            run.name,
            *(f"{value:.3f}" for value in (run.ttft_p50_s, run.ttft_p95_s, run.ttft_p99_s)),
            *(f"{value:.0f}" for value in (run.batch_s, run.yields, run.decoded_again)),
        ]
        for run in runs
    ]
    return Table(title, head, rows)


PARTS: dict[str, Callable[[Stack, argparse.Namespace], Verdict]] = {
    "cost": _cost,
    "busy": _busy,
    "bursts": _bursts,
    "steady": _steady,
    "large": _large,
}
_DEFAULT = "cost,busy,bursts,steady"

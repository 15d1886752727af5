"""The table of a benchmark: that of `vllm bench serve`, with an earlier run beside it. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gateway.bench.figures import METRICS, Result

_WIDTH = 50
_WIDTH_COMPARED = 74
# Label, key, format.
_COUNTS = (
    ("Successful requests:", "completed", "d"),
    ("Failed requests:", "failed", "d"),
    ("Maximum request concurrency:", "max_concurrency", "d"),
    ("Request rate configured (RPS):", "request_rate", ".2f"),
    ("Benchmark duration (s):", "duration", ".2f"),
    ("Total input tokens:", "total_input_tokens", "d"),
    ("Total generated tokens:", "total_output_tokens", "d"),
    ("Request throughput (req/s):", "request_throughput", ".2f"),
    ("Request goodput (req/s):", "request_goodput", ".2f"),
    ("Output token throughput (tok/s):", "output_throughput", ".2f"),
    ("Peak output token throughput (tok/s):", "max_output_tokens_per_s", ".2f"),
    ("Peak concurrent requests:", "max_concurrent_requests", ".2f"),
    ("Total token throughput (tok/s):", "total_token_throughput", ".2f"),
)
_STATISTIC = re.compile(r"(mean|median|p[\d.]+)_(.+)_ms")
_LOAD = (
    "backend", "model_id", "num_prompts", "request_rate", "burstiness", "max_concurrency",
)  # fmt: skip
"""What two runs must have in common for their figures to mean the same."""


class Row(NamedTuple):
    """A line of the table, or a heading if `key` is empty."""

    label: str
    key: str = ""
    form: str = ".2f"


def table(result: Result, metrics: Sequence[str], before: Result | None = None) -> str:
    """The result as vLLM prints it; with `before` two more columns: the earlier value, the change.

    `metrics`: the times that are shown.
    """
    width = _WIDTH if before is None else _WIDTH_COMPARED
    lines = [f"{' Serving Benchmark Result ':=^{width}}"]
    if before is not None:
        lines.append(f"{'':<40} {'now':<10} {'before':<10} {'change':>11}")
    for row in _rows(result, metrics):
        if not row.key:
            lines.append(f"{row.label:-^{width}}")
            continue
        line = f"{row.label:<40} {_shown(result[row.key], row.form):<10}"
        if before is not None:
            earlier = before.get(row.key)
            line += f" {_shown(earlier, row.form):<10} {change(result[row.key], earlier):>11}"
        lines.append(line.rstrip())
    return "\n".join([*lines, "=" * width])


def differences(result: Result, before: Result) -> list[str]:
    """In which ways an earlier run had another load, in words."""
    return [
        f"{key}: {before.get(key)} before, {result.get(key)} now"
        for key in _LOAD
        if before.get(key) != result.get(key)
    ]


def change(now: object, before: object) -> str:
    """The relative change, with its sign; empty if there is none to show."""
    if not isinstance(now, int | float) or not isinstance(before, int | float) or not before:
        return ""
    return f"{(now / before - 1) * 100:+.1f} %"


def _rows(result: Result, metrics: Sequence[str]) -> Iterator[Row]:
    for label, key, form in _COUNTS:
        if isinstance(result.get(key), int | float):
            yield Row(label, key, form)
    for metric in metrics:
        name, heading = METRICS[metric]
        found = [match for key in result if (match := _STATISTIC.fullmatch(key))]
        rows = [
            Row(f"{match[1].capitalize()} {name} (ms):", match[0])
            for match in found
            if match[2] == metric
        ]
        if rows:
            yield Row(heading)
        yield from rows


def _shown(value: object, form: str) -> str:
    if not isinstance(value, int | float):
        return "-"
    return format(int(value) if form == "d" else value, form)

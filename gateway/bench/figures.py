"""The figures of a benchmark, named and computed as those of `vllm bench serve`. Pure.

A result is a flat dictionary with the keys of vLLM's result files, so that either program's files
can be compared with the other's.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from gateway.bench.outcome import Outcome

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "queue_wait": ("Queue Wait", "Wait in the Fleet's Queue"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
}
"""The measured times: key, name in the table, heading."""

Result = dict[str, Any]


def result(
    outcomes: Sequence[Outcome],
    duration_s: float,
    goodput: Mapping[str, float],
    percentiles: Sequence[float] = (99.0,),
) -> Result:
    """All figures; `goodput` has the longest good time of a request, in ms, by metric."""
    good = [outcome for outcome in outcomes if not outcome.error]
    n_input = sum(outcome.prompt_tokens for outcome in good)
    n_output = sum(outcome.output_tokens for outcome in good)
    n_good = sum(_meets(outcome, goodput) for outcome in good)
    tokens_per_s, concurrent = _peaks(good)
    seconds = duration_s or math.inf
    found: Result = {
        "duration": duration_s,
        "completed": len(good),
        "failed": len(outcomes) - len(good),
        "total_input_tokens": n_input,
        "total_output_tokens": n_output,
        "request_throughput": len(good) / seconds,
        "request_goodput": n_good / seconds if goodput else None,
        "output_throughput": n_output / seconds,
        "total_token_throughput": (n_input + n_output) / seconds,
        "max_output_tokens_per_s": tokens_per_s,
        "max_concurrent_requests": concurrent,
    }
    for metric, values in _times(good).items():
        found |= _summary(metric, values, percentiles)
    if waits := [outcome.queue_wait for outcome in good if outcome.queue_wait is not None]:
        found |= _summary("queue_wait", waits, percentiles)
    return found


def details(outcomes: Sequence[Outcome]) -> Result:
    """What vLLM's `--save-detailed` adds: the figures of each request."""
    return {
        "input_lens": [outcome.prompt_tokens for outcome in outcomes],
        "output_lens": [outcome.output_tokens for outcome in outcomes],
        "ttfts": [outcome.ttft for outcome in outcomes],
        "itls": [outcome.itl for outcome in outcomes],
        "latencies": [outcome.latency for outcome in outcomes],
        "start_times": [outcome.started for outcome in outcomes],
        "queue_times": [outcome.client_queue_time for outcome in outcomes],
        "errors": [outcome.error for outcome in outcomes],
    }


def percentile_key(metric: str, percentile: float) -> str:
    """The key of a percentile: `p99_ttft_ms`."""
    return f"p{percentile:g}_{metric}_ms"


def percentile(values: Sequence[float], share: float) -> float:
    """A percentile of sorted values, interpolated as numpy does."""
    at = (len(values) - 1) * share / 100
    low = math.floor(at)
    high = min(low + 1, len(values) - 1)
    return values[low] + (values[high] - values[low]) * (at - low)


def _times(good: Sequence[Outcome]) -> dict[str, list[float]]:
    return {
        "ttft": [outcome.ttft for outcome in good],
        "tpot": [_tpot(outcome) for outcome in good if outcome.output_tokens > 1],
        "itl": [gap for outcome in good for gap in outcome.itl],
        "e2el": [outcome.latency for outcome in good],
        "client_queue_time": [outcome.client_queue_time for outcome in good],
    }


def _summary(metric: str, values: list[float], percentiles: Sequence[float]) -> Result:
    ordered = sorted(values) or [0.0]
    summary = {
        f"mean_{metric}_ms": statistics.fmean(ordered),
        f"median_{metric}_ms": percentile(ordered, 50),
        f"std_{metric}_ms": statistics.pstdev(ordered),
    }
    summary |= {percentile_key(metric, each): percentile(ordered, each) for each in percentiles}
    return {key: value * 1000 for key, value in summary.items()}


def _tpot(outcome: Outcome) -> float:
    if outcome.output_tokens <= 1:
        return 0.0
    return (outcome.latency - outcome.ttft) / (outcome.output_tokens - 1)


def _meets(outcome: Outcome, goodput: Mapping[str, float]) -> bool:
    times = {"ttft": outcome.ttft, "tpot": _tpot(outcome), "e2el": outcome.latency}
    return all(times[metric] * 1000 <= most_ms for metric, most_ms in goodput.items())


def _peaks(good: Sequence[Outcome]) -> tuple[float, int]:
    """The most chunks within a second, and the most requests that were open in the same second."""
    chunks: Counter[int] = Counter()
    requests: Counter[int] = Counter()
    start = min((outcome.started for outcome in good), default=0.0)
    for outcome in good:
        at = outcome.started - start + outcome.ttft
        chunks[int(at)] += 1
        for gap in outcome.itl:
            at += gap
            chunks[int(at)] += 1
        first, last = outcome.started - start, outcome.started - start + outcome.latency
        requests.update(range(int(first), int(last) + 1))
    return float(max(chunks.values(), default=0)), max(requests.values(), default=0)

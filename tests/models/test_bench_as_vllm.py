"""`flotilla bench` computes what vLLM's own benchmark computes of the same answers."""

from __future__ import annotations

import random

import pytest

from gateway.bench import figures
from gateway.bench.outcome import Outcome

pytestmark = pytest.mark.vllm

PERCENTILES = [50.0, 95.0, 99.0, 99.9]
SAME = (
    "completed", "failed", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests",
)  # fmt: skip


def outcomes() -> list[Outcome]:
    """Answers of different lengths, one of a single token, and failures."""
    draw = random.Random(21)
    made = []
    for i in range(60):
        gaps = [draw.expovariate(40) for _ in range(0 if i == 7 else draw.randint(3, 40))]
        ttft = draw.uniform(0.01, 0.5)
        made.append(
            Outcome(
                started=1000 + draw.uniform(0, 5),
                ttft=ttft,
                itl=gaps,
                latency=ttft + sum(gaps),
                prompt_tokens=draw.randint(1, 90),
                output_tokens=len(gaps) + 1,
                error="" if i % 20 else "503: no worker",
            )
        )
    return made


def test_every_figure_is_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    from vllm.benchmarks.lib.endpoint_request_func import RequestFuncOutput
    from vllm.benchmarks.serve import calculate_metrics

    goodput = {"ttft": 300.0, "tpot": 30.0, "e2el": 1200.0}
    theirs, _ = calculate_metrics(
        [],
        [
            RequestFuncOutput(
                success=not each.error,
                latency=each.latency,
                output_tokens=each.output_tokens,
                ttft=each.ttft,
                itl=each.itl,
                prompt_len=each.prompt_tokens,
                start_time=each.started,
            )
            for each in outcomes()
        ],
        9.5,
        None,
        PERCENTILES,
        goodput,
    )
    ours = figures.result(outcomes(), 9.5, goodput, PERCENTILES)
    assert {name: ours[name] for name in SAME} == pytest.approx(
        {name: getattr(theirs, name) for name in SAME}
    )
    assert ours["total_input_tokens"] == theirs.total_input
    assert ours["total_output_tokens"] == theirs.total_output
    for metric in ("ttft", "tpot", "itl", "e2el"):
        for statistic in ("mean", "median", "std"):
            key = f"{statistic}_{metric}_ms"
            assert ours[key] == pytest.approx(getattr(theirs, key)), key
        expected = dict(getattr(theirs, f"percentiles_{metric}_ms"))
        found = {each: ours[figures.percentile_key(metric, each)] for each in PERCENTILES}
        assert found == pytest.approx(expected)

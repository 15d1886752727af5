"""Tables of the measurements of real vLLM, and the results of `vllm bench serve`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Measurement, Results
from load_tests.clients.load_client import LoadResult
from load_tests.harness.errors import WrongAnswerError
from load_tests.vllm.command import bench_serve_table, tables
from load_tests.vllm.rounds import POINTS, BenchServeResult, parse_bench_serve

ROLES = {"vllm": "engine", "worker": "engine", "gateway": "front"}


def measurement(system: str, tokens: int, ttft_s: float, **cpu_s: float) -> Measurement:
    """A second's work."""
    return Measurement(
        system=system,
        point="c32",
        round=0,
        unit="token",
        step_s=0.0,
        client=LoadResult(done=1, tokens=tokens, wall_s=1.0, ttft_p50_s=ttft_s),
        cpu_s=cpu_s,
        roles={label: ROLES[label] for label in cpu_s},
    )


def test_ratios_are_to_vllm_serve() -> None:
    measurements = [
        measurement("vllm", 1000, 0.010, vllm=0.4),
        measurement("fleet", 1100, 0.012, gateway=0.011, worker=0.33),
    ]
    (table,) = tables(Figures(Results({}, measurements)))
    fleet = table.rows[1]
    assert fleet[0] == "fleet (gateway/worker)"
    assert fleet[1:3] == ["1100", "1.10"]
    assert fleet[3:5] == ["12.0", "+2.00"]
    assert fleet[5:] == ["10+300", "310", "0.78"]


def test_bench_serve_ratios_are_paired_by_round() -> None:
    results = [
        BenchServeResult("vllm", 0, 1000, 10, 1), BenchServeResult("fleet", 0, 1500, 11, 1),
        BenchServeResult("fleet", 1, 3000, 11, 1), BenchServeResult("vllm", 1, 2000, 10, 1),
    ]  # fmt: skip
    rows = {row[0]: row for row in bench_serve_table(results).rows}
    assert rows["fleet"][2] == "1.50 (1.50..1.50)"


def test_without_bench_serve_there_are_no_rows() -> None:
    assert not bench_serve_table([]).rows


def test_bench_serve_fails_if_a_request_was_not_answered(tmp_path: Path) -> None:
    point = POINTS["c32"]
    path = tmp_path / "bench-serve.json"
    figures = {"output_throughput": 900.5, "median_ttft_ms": 30.0, "median_itl_ms": 4.0}
    path.write_text(json.dumps({"completed": point.requests, **figures}))
    assert parse_bench_serve("fleet", 1, point, path) == BenchServeResult(
        "fleet", 1, 900.5, 30.0, 4.0
    )
    path.write_text(json.dumps({"completed": point.requests - 1, **figures}))
    with pytest.raises(WrongAnswerError):
        parse_bench_serve("fleet", 1, point, path)

"""Figures of real vLLM: tables, and what the outside judge says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from load_tests.bench.figures import Figures
from load_tests.bench.measurement import Measurement, Results
from load_tests.bench.rounds import WrongAnswer
from load_tests.clients.load_client import Result
from load_tests.vllm.command import judged_table, tables
from load_tests.vllm.rounds import POINTS, Judged, parse_judged

ROLES = {"vllm": "engine", "worker": "engine", "gateway": "front"}


def measurement(system: str, tokens: int, ttft_s: float, **cpu_s: float) -> Measurement:
    """A second's work."""
    return Measurement(
        system=system,
        point="c32",
        round=0,
        unit="token",
        step_s=0.0,
        client=Result(done=1, tokens=tokens, wall_s=1.0, ttft_p50_s=ttft_s),
        cpu_s=cpu_s,
        roles={label: ROLES[label] for label in cpu_s},
    )


def test_ratios_are_to_vllm_itself() -> None:
    measurements = [
        measurement("vllm", 1000, 0.010, vllm=0.4),
        measurement("fleet", 1100, 0.012, gateway=0.011, worker=0.33),
    ]
    (table,) = tables(Figures(Results({}, measurements)))
    fleet = table.rows[1]
    assert fleet[0] == "fleet (gateway/worker)"
    assert fleet[1:3] == ["1100", "1.10 (1.10..1.10)"]
    assert fleet[3:5] == ["12.0", "+2.00 (+2.00..+2.00)"]
    assert fleet[5:] == ["10+300", "310", "0.78 (0.78..0.78)"]


def test_the_judges_rounds_are_paired() -> None:
    judged = [
        Judged("vllm", 0, 1000, 10, 1), Judged("fleet", 0, 1500, 11, 1),
        Judged("fleet", 1, 3000, 11, 1), Judged("vllm", 1, 2000, 10, 1),
    ]  # fmt: skip
    rows = {row[0]: row for row in judged_table(judged).rows}
    assert rows["fleet"][2] == "1.50 (1.50..1.50)"


def test_an_absent_judge_leaves_no_row() -> None:
    assert not judged_table([]).rows


def test_the_judge_must_have_been_answered(tmp_path: Path) -> None:
    point = POINTS["c32"]
    path = tmp_path / "judge.json"
    said = {"output_throughput": 900.5, "median_ttft_ms": 30.0, "median_itl_ms": 4.0}
    path.write_text(json.dumps({"completed": point.requests, **said}))
    assert parse_judged("fleet", 1, point, path) == Judged("fleet", 1, 900.5, 30.0, 4.0)
    path.write_text(json.dumps({"completed": point.requests - 1, **said}))
    with pytest.raises(WrongAnswer):
        parse_judged("fleet", 1, point, path)

"""How far two benchmarks differ: the medians over all runs."""

from __future__ import annotations

import pytest

from load_tests.agreement.command import FIGURES, difference, table
from load_tests.agreement.runs import PROGRAMS, Setup

THEIRS, OURS = PROGRAMS


def runs(theirs: list[float], ours: list[float]) -> dict[str, list[dict[str, float]]]:
    return {
        THEIRS: [dict.fromkeys(FIGURES, value) for value in theirs],
        OURS: [dict.fromkeys(FIGURES, value) for value in ours],
    }


def test_medians_are_compared() -> None:
    found = runs([10, 90, 11], [11, 0, 12])
    assert difference(found, "mean_ttft_ms") == pytest.approx(0)
    assert difference(runs([10], [11]), "mean_ttft_ms") == pytest.approx(10)


def test_the_table_marks_what_differs_too_much() -> None:
    rows = table("vllm", runs([10], [10.6]), 5.0).rows
    assert rows[0] == ["mean_ttft_ms", "10.00", "10.60", "+6.0 % !"]
    assert table("vllm", runs([10], [10.4]), 5.0).rows[0][-1] == "+4.0 %"


def test_both_programs_get_the_same_load() -> None:
    setup = Setup(num_prompts=5, max_concurrency=2, rate=4.0, words=8, output_tokens=3)
    assert setup.options() == [
        "--num-prompts", "5", "--max-concurrency", "2", "--request-rate", "4.0", "--ignore-eos",
    ]  # fmt: skip

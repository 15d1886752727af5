"""A soak test detects growth, wrong answers and leftovers."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable

import pytest

from load_tests.oracle.answer import Answer
from load_tests.oracle.observation import End, Observation
from load_tests.oracle.request_classes import Mode, chat, make_request
from load_tests.oracle.undisturbed import Expected
from load_tests.soak.command import Answers, problems, trend_table, trends_of
from load_tests.soak.trend import Trend, trend

RIGHT = Answers(right=Counter({"call": 10}))
TIMES = [15.0 * n for n in range(1, 121)]
MB = 1e6


def of(value: Callable[[float], float], tolerance: float = 4 * MB) -> Trend:
    """Half an hour of a figure."""
    return trend("x", [(at, value(at)) for at in TIMES], warm_up_s=360, tolerance=tolerance)


def noisy(at: float) -> float:
    return random.Random(at).uniform(-3, 3) * MB


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        (lambda at: 60 * MB, True),
        (lambda at: 60 * MB + noisy(at), True),
        (lambda at: min(60 * MB, at * MB), True),  # grows in the warm-up only
        (lambda at: 60 * MB - at * 1000, True),
        (lambda at: 60 * MB + at * 1000, True),  # 1.4 MB in 24 minutes
        (lambda at: 60 * MB + at * 5000, False),
        (lambda at: 60 * MB + noisy(at) + at * 5000, False),
        (lambda at: (90 if at % 60 else 300) * MB, True),  # a copy now and then
        (lambda at: 200 * MB + at * 5000, True),  # 7 MB, less than 5 %
    ],
)
def test_growth_is_detected_and_noise_is_tolerated(
    value: Callable[[float], float], flat: bool
) -> None:
    assert of(value).flat == flat


def test_a_trend_has_start_end_and_slope() -> None:
    found = of(lambda at: 10 * MB + at * 1000)
    assert (found.start, found.end) == pytest.approx((10.36 * MB, 11.8 * MB))
    assert found.per_hour == pytest.approx(3.6 * MB)


def sample(at: float, **changes: float) -> dict[str, float]:
    return {"seconds": at, "cpu_s": at / 8, "gateway PSS bytes": 60 * MB, "keys": 100.0, **changes}


def test_every_figure_but_time_has_a_trend() -> None:
    found = trends_of([sample(at, keys=at) for at in TIMES])
    assert {item.name: item.flat for item in found} == {"gateway PSS bytes": True, "keys": False}
    assert "GROWS" in trend_table(found).text()


def test_random_variation_of_a_count_is_tolerated() -> None:
    found = trends_of([sample(at, keys=500 + 0.05 * at) for at in TIMES])
    assert all(item.flat for item in found)


def test_a_flat_run_has_no_problems() -> None:
    assert problems(trends_of([sample(at) for at in TIMES]), RIGHT, {}) == []


def test_every_problem_has_a_line() -> None:
    growing = trends_of([sample(at, keys=at) for at in TIMES])
    wrong = Answers(wrong=Counter({"chat, call: 1 tokens lost": 2}))
    assert problems(growing, wrong, {"log keys": 3.0}) == [
        "GROWS: keys, from 360 to 1800",
        "WRONG: 2x chat, call: 1 tokens lost",
        "LEFT OVER: 3 log keys",
        "WRONG: no client got a right answer",
    ]


@pytest.mark.parametrize(
    ("mode", "end", "right"),
    [
        (Mode.CALL, End.COMPLETE, True),
        (Mode.CALL, End.CUT, False),
        (Mode.CALL, End.REFUSED, False),
        (Mode.LEFT, End.LEFT, True),
        (Mode.LEFT, End.COMPLETE, False),
        (Mode.CANCELLED, End.FAILED, False),
    ],
)
def test_each_client_must_end_as_it_is_meant_to(mode: Mode, end: End, right: bool) -> None:
    answers = Answers()
    request = make_request(chat(5), random.Random(1), "tag", mode)
    expected = Expected(Answer(), Counter({(0, 0): 5}), {}, prompt_tokens=1)
    answers.add(Observation(request, expected, began=0.0, end=end), None)
    assert bool(answers.right) == right
    assert bool(answers.wrong) != right


def test_a_client_without_a_record_is_wrong() -> None:
    answers = Answers()
    request = make_request(chat(5), random.Random(1), "tag", Mode.CALL)
    expected = Expected(Answer(), Counter({(0, 0): 5}), {}, prompt_tokens=1)
    answers.add(Observation(request, expected, began=0.0, end=End.COMPLETE, job_id="j"), None)
    assert list(answers.wrong) == ["chat, call: Redis has no record of it"]

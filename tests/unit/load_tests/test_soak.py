"""A soak test detects growth, wrong answers and leftovers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from load_tests.clients.expected_text import expected_text
from load_tests.clients.mixed_client import MIX, MixedClient, MixedResult, MixedSpec
from load_tests.soak.command import problems, trend_table, trends_of
from load_tests.soak.trend import Trend, trend
from load_tests.systems.engine import MODEL

RIGHT = MixedResult(right={"stream": 10})
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
    return {"seconds": at, "cpu_s": at / 8, "gateway RSS bytes": 60 * MB, "keys": 100.0, **changes}


def test_every_figure_but_time_has_a_trend() -> None:
    found = trends_of([sample(at, keys=at) for at in TIMES])
    assert {item.name: item.flat for item in found} == {"gateway RSS bytes": True, "keys": False}
    assert "GROWS" in trend_table(found).text()


def test_random_variation_of_a_count_is_tolerated() -> None:
    found = trends_of([sample(at, keys=500 + 0.05 * at) for at in TIMES])
    assert all(item.flat for item in found)


def test_a_flat_run_has_no_problems() -> None:
    assert problems(trends_of([sample(at) for at in TIMES]), RIGHT, {}) == []


def test_every_problem_has_a_line() -> None:
    growing = trends_of([sample(at, keys=at) for at in TIMES])
    wrong = MixedResult(wrong={"stream: WrongAnswerError('x')": 2})
    assert problems(growing, wrong, {"log keys": 3.0}) == [
        "GROWS: keys, from 360 to 1800",
        "WRONG: 2x stream: WrongAnswerError('x')",
        "LEFT OVER: 3 log keys",
        "WRONG: no client got a right answer",
    ]


async def test_the_expected_text_depends_on_the_request() -> None:
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 5}
    text = await expected_text({**body, "seed": 1, "ignore_eos": True})
    assert text.startswith("[simulated]")
    assert len(text.split()) == 5
    assert text != await expected_text({**body, "seed": 2, "ignore_eos": True})


def stream_of(text: str) -> bytes:
    """An answer that is streamed word by word."""
    words = [word if n == 0 else f" {word}" for n, word in enumerate(text.split())]
    choices: list[dict[str, Any]] = [
        {"delta": {"content": word}, "finish_reason": None} for word in words
    ]
    choices[-1]["finish_reason"] = "length"
    events = [json.dumps({"choices": [choice]}) for choice in choices]
    return "".join(f"data: {event}\n\n" for event in (*events, "[DONE]")).encode()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda text: text, ""),
        (lambda text: f"{text} {text.split()[-1]}", "repeated after"),
        (lambda text: text.rpartition(" ")[0], "short after"),
    ],
)
async def test_a_wrong_token_is_detected(
    change: Callable[[str], str], reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def answer(request: httpx.Request) -> httpx.Response:
        text = change(await expected_text(json.loads(request.content)))
        return httpx.Response(200, content=stream_of(text))

    monkeypatch.setattr("load_tests.clients.mixed_client.MIX", {"stream": 1})
    spec = MixedSpec("http://fleet", ["key"], seconds=0.05, rate=100)
    result = await MixedClient(spec, httpx.MockTransport(answer)).run()
    assert bool(result.wrong) == bool(reason)
    assert bool(result.right) != bool(reason)
    assert all(reason in wrong for wrong in result.wrong)


async def test_a_refusal_is_an_error_for_every_kind_of_client() -> None:
    refuse = httpx.MockTransport(lambda request: httpx.Response(503, text="full"))
    spec = MixedSpec("http://fleet", ["key"], seconds=0.1, rate=1000)
    result = await MixedClient(spec, refuse).run()
    assert not result.right
    assert {reason.partition(":")[0] for reason in result.wrong} == set(MIX)

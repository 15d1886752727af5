"""The simulation of a fleet's capacity: its queues, its costs, and the tables."""

from __future__ import annotations

import argparse
import dataclasses
import json
from typing import Any

import pytest

from load_tests.capacity.command import (
    FULL,
    MASTERS,
    MEASURED,
    WORKERS,
    beyond,
    compare,
    cost_table,
    gateways_for,
    judge,
    node_table,
    predict,
)
from load_tests.capacity.measured_run import summarize
from load_tests.capacity.simulation import (
    FEATURES,
    Size,
    cold_share,
    coldness,
    fit,
    least_squares,
    script_costs,
    serve,
    simulate,
    spread_of,
)

EVEN = [(1, [1.0]), (64, [1.0])]
COSTS = {
    "redis": dict.fromkeys(FEATURES["redis"], 0.0)
    | {"step": 35.0, "frame": 0.75, "request": 110.0},
    "gateway": dict.fromkeys(FEATURES["gateway"], 0.0) | {"frame": 10.0, "request": 150.0},
    "workers": dict.fromkeys(FEATURES["workers"], 0.0) | {"frame": 20.0},
    "client": dict.fromkeys(FEATURES["client"], 0.0),
}
NOTHING = {"p50": 0.0, "p99": 0.0}


def costs(part: str, **changes: float) -> dict[str, dict[str, float]]:
    """COSTS with some of a part's changed."""
    return {**COSTS, part: {**COSTS[part], **changes}}


def run_of(size: Size, seconds: float = 4.0) -> dict[str, Any]:
    """What a run would have measured on a machine with exactly COSTS."""
    steps = size.workers * 1e3 / size.step_ms * seconds
    frames, requests = steps * size.streams / size.workers, 3.0 * size.tokens
    units = {
        "step": steps, "frame": frames, "message": steps * size.gateways, "request": requests,
        "second": seconds * size.workers, "fleet": seconds,
    }  # fmt: skip
    cpu_s = {
        part: 1e-6 * (100 + sum(of[name] * units.get(name, 0) for name in of))
        for part, of in COSTS.items()
    }
    return {
        "size": dataclasses.asdict(size), "seconds": seconds, "steps": steps, "frames": frames,
        "messages": steps * size.gateways, "requests": requests, "cpu_s": cpu_s,
        "scripts": [{"script": "emit", "batch": 64, "messages": 0, "calls": 1, "mean_us": 1.0,
                     "quantiles_us": [1.0]}],
        "ages_us": {"p50": 3000.0, "p99": 9000.0},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("arrivals", "begin_and_cost", "work"),
    [
        ([(10.0, 5.0, "a")], [(10.0, 5.0)], 5.0),
        ([(10.0, 5.0, "a"), (12.0, 5.0, "b")], [(10.0, 5.0), (15.0, 5.0)], 10.0),
        ([(12.0, 5.0, "b"), (10.0, 1.0, "a")], [(10.0, 1.0), (12.0, 5.0)], 6.0),
    ],
)
def test_a_process_works_in_the_order_of_arrival(
    arrivals: list[Any], begin_and_cost: list[tuple[float, float]], work: float
) -> None:
    done = serve(arrivals, wake_us=0.0)
    assert done[0] == work
    assert [each[:2] for each in done[1]] == begin_and_cost


def test_what_comes_to_a_sleeping_process_costs_more_the_longer_it_slept() -> None:
    def cost(at: float, what: object, *, always: bool) -> float:
        return serve([(0.0, 10.0, "first"), (at, 10.0, what)], 100.0, always)[1][1][1]

    assert cost(5.0, "a", always=True) == 10.0  # it is still awake
    assert cost(510.0, "a", always=True) == pytest.approx(10 + 100 * coldness(500.0))
    assert cost(1e9, "a", always=True) == pytest.approx(110.0)
    assert cost(1e9, None, always=False) == 10.0


@pytest.mark.parametrize("part", ["redis", "gateway"])
def test_a_frame_costs_more_the_longer_its_job_got_none(part: str) -> None:
    def cores(step_ms: float, cold: float) -> float:
        size = Size(workers=2, streams=64, step_ms=step_ms)
        return simulate(size, 1, costs(part, cold=cold), EVEN, 5.0).cores[part]

    for step_ms in (5.0, 100.0):
        frames_a_second = 64 * 1e3 / step_ms
        more = frames_a_second * cold_share(step_ms) * 10e-6
        assert cores(step_ms, 10.0) - cores(step_ms, 0.0) == pytest.approx(more, rel=0.1)
    assert 0 < cold_share(5.0) < cold_share(100.0) < 1


def test_cores_are_the_sum_of_what_was_done() -> None:
    size = Size(workers=10, streams=640, step_ms=25, tokens=300)
    found = simulate(size, 2, COSTS, EVEN, 5.0)
    steps, tokens = 400, 25_600
    redis = steps * 35 + tokens * 0.75 + tokens / 300 * 110
    assert found.cores["redis"] == pytest.approx(redis / 1e6, rel=0.02)
    assert found.busiest["redis"] == pytest.approx(redis / 2e6, rel=0.05)
    gateway = tokens * 10 + tokens / 300 * 150
    assert found.cores["gateway"] == pytest.approx(gateway / 1e6, rel=0.02)


def test_cores_of_all_gateways_are_told_though_two_are_simulated() -> None:
    size = Size(workers=40, streams=2560, step_ms=25, tokens=300, gateways=6)
    found = simulate(size, 2, COSTS, EVEN, 2.0)
    tokens = 102_400
    assert found.cores["gateway"] == pytest.approx((tokens * 10 + tokens / 2) / 1e6, rel=0.1)


def test_equal_arguments_have_equal_results() -> None:
    size = Size(workers=3, streams=30, step_ms=25)
    assert simulate(size, 1, COSTS, EVEN, 1.0) == simulate(size, 1, COSTS, EVEN, 1.0)


def test_tokens_wait_longer_at_a_busier_master() -> None:
    size = Size(workers=100, streams=800, step_ms=25)
    slow = costs("redis", step=180.0)
    one, two = (simulate(size, masters, slow, EVEN, 2.0).ages_us for masters in (1, 2))
    at = len(one) // 2
    assert one[at] > two[at]


def test_long_script_calls_are_in_the_latency_but_not_in_the_cores() -> None:
    size = Size(workers=4, streams=16, step_ms=25)
    spread = [(4, [0.5] * 90 + [5.5] * 10)]
    even, uneven = (simulate(size, 1, COSTS, each, 10.0) for each in (EVEN, spread))
    assert uneven.ages_us[-1] > even.ages_us[-1] + 3 * 35
    assert uneven.cores["redis"] == pytest.approx(even.cores["redis"], rel=0.1)


def test_each_message_to_a_further_gateway_costs_redis() -> None:
    size = Size(workers=10, streams=640, step_ms=25, gateways=4)
    dear = costs("redis", message=20.0)
    more = simulate(size, 1, dear, EVEN, 2.0).cores["redis"]
    less = simulate(size, 1, COSTS, EVEN, 2.0).cores["redis"]
    assert more - less == pytest.approx(400 * 3 * 20e-6, rel=0.05)


def test_a_worker_whose_streams_come_from_few_gateways_sends_few_messages() -> None:
    size = Size(workers=10, streams=640, step_ms=25, gateways=20)
    dear = costs("redis", message=20.0)
    every, near = (
        simulate(dataclasses.replace(size, near=n), 1, dear, EVEN, 2.0).cores["redis"]
        for n in (0, 2)
    )
    assert every - near == pytest.approx(400 * (18.2 - 1) * 20e-6, rel=0.1)  # of 20 and of 2
    steps = costs("gateway", message=30.0)
    assert gateways_for(dataclasses.replace(size, workers=500, streams=32_000, near=2), steps) < (
        gateways_for(dataclasses.replace(size, workers=500, streams=32_000), steps)
    )


@pytest.mark.parametrize(("of_three", "good"), [(3.5, True), (4.0, False)])
def test_a_node_may_cost_little_more_than_its_share(of_three: float, good: bool) -> None:
    table, found = node_table({1: [10.0, 20.0], 2: [5.0, 10.0], 3: [of_three, 2 * of_three]})
    assert found is good
    assert [row[2] for row in table.rows] == ["1.000", "0.500", f"{of_three / 10:.3f}"]


def test_fit_finds_the_costs_of_a_machine() -> None:
    sizes = [
        Size(8, 16, 50), Size(8, 128, 50, tokens=16), Size(8, 256, 100),
        Size(8, 64, 10, gateways=4),
        Size(4, 0, 50), Size(8, 64, 20, tokens=400), Size(2, 32, 5), Size(8, 256, 30),
    ]  # fmt: skip
    found = fit([run_of(size) for size in sizes])
    assert found["redis"]["step"] == pytest.approx(35, rel=0.05)
    assert found["redis"]["frame"] == pytest.approx(0.75, rel=0.1)
    assert found["gateway"]["request"] == pytest.approx(150, rel=0.05)


@pytest.mark.parametrize(
    ("rows", "wanted", "least", "factors"),
    [
        ([[1.0, 0.0], [1.0, 2.0]], [3.0, 7.0], [0.0, 0.0], [3.0, 2.0]),
        ([[1.0, 1.0], [1.0, 3.0]], [3.0, 1.0], [0.0, 0.0], [1.2, 0.0]),  # it would be negative
        ([[1.0, 0.0], [1.0, 2.0]], [3.0, 7.0], [0.0, 3.0], [2.69, 3.0]),
        ([[1.0, 0.0], [2.0, 0.0]], [3.0, 6.0], [0.0, 0.0], [3.0, 0.0]),
    ],
)
def test_least_squares(
    rows: list[list[float]], wanted: list[float], least: list[float], factors: list[float]
) -> None:
    assert least_squares(rows, wanted, least) == pytest.approx(factors, rel=0.05)


def test_what_a_frame_and_a_message_cost_in_scripts() -> None:
    def calls(batch: int, messages: int, us: float, n: int = 100) -> dict[str, Any]:
        quantiles = [us, us, 3 * us, 9 * us]
        told = {"script": "emit", "batch": batch, "messages": messages, "calls": n}
        return {**told, "quantiles_us": quantiles}

    scripts = [calls(1, 1, 31), calls(32, 1, 62), calls(16, 4, 64), calls(64, 1, 999, n=3)]
    found = script_costs([{"scripts": scripts}])
    assert found == pytest.approx({"step": 30, "frame": 1, "message": 6}, rel=0.02)


def test_script_times_are_told_by_name_and_batch_size() -> None:
    def emit(us: int, sizes: bytes, *messages: bytes) -> list[Any]:
        head = [b"FCALL", b"flotilla_0a_emit", b"1", b"base", b"w", b"t", b"0", sizes]
        return [1, 0, us, [*head, *[b""] * 6, *messages], b"address", b""]

    log = [
        emit(40, b"\x93\x01\x01\x01", b"gw-1", b""),
        emit(60, b"\x93\x01\x01\x01", b"gw-1", b""),
        emit(60, b"\x94\x01\x01\x01\x01", b"gw-1", b"", b"gw-2", b""),
        emit(90, b"\xdc\x00\x21" + b"\x01" * 33, b"gw-1", b""),
        emit(20, b""),
        [5, 0, 70, [b"FCALL", b"flotilla_0a_find_ended", b"1", b"base"], b"", b""],
        [6, 0, 70, [b"RPUSH", b"key", b"value"], b"", b""],
    ]
    found = summarize(log)
    assert (found["steps"], found["frames"], found["messages"]) == (4, 3 + 3 + 4 + 33, 5)
    told = {
        (each["script"], each["batch"], each["messages"]): each["mean_us"]
        for each in found["scripts"]
    }
    assert told == {
        ("emit", 4, 1): 50, ("emit", 4, 2): 60, ("emit", 64, 1): 90, ("emit", 1, 0): 20,
        ("find_ended", 1, 0): 70,
    }  # fmt: skip
    assert set(dict(spread_of([found]))[4]) == {0.8, 1.2, 1.0}


def test_what_tokens_wait_beyond_the_simulation_is_added() -> None:
    runs = [run_of(Size(4, 64, 50)), run_of(Size(4, 0, 50)), run_of(Size(4, 64, 1))]
    assert beyond(runs, COSTS, EVEN)["p99"] > 5000
    pairs = compare([(runs, runs[:1])])
    ages = {name: each for (_, name), each in pairs.items() if "ms" in name}
    assert ages == {
        "p50 ms": [pytest.approx((3.0, 3.0), rel=0.01)],
        "p99 ms": [pytest.approx((9.0, 9.0), rel=0.01)],
    }
    cores = {name: each for (_, name), each in pairs.items() if "cores" in name}
    assert cores.keys() == {"redis cores", "gateway cores"}


@pytest.mark.parametrize(
    ("name", "off", "good"),
    [
        ("redis cores", 0.14, True),
        ("redis cores", -0.16, False),
        ("gateway cores", 0.16, False),
        ("p99 ms", 0.29, True),
        ("p99 ms", -0.31, False),
        ("p50 ms", 0.9, True),
    ],
)
def test_a_prediction_may_be_off_so_far(name: str, off: float, good: bool) -> None:
    """By the median of the rounds' ratios, whatever their figures were."""
    pairs = [(1.0, 9.0), (10.0, 10 * (1 + off)), (3.0, 0.3)]
    table, found = judge({("a fleet", name): pairs})
    assert found is good
    assert table.rows == [["a fleet", name, "3.000", *table.rows[0][3:]]]
    assert table.rows[0][4:] == [f"{off:+.0%}", "-90% to +800%"]


def test_as_few_gateways_as_are_not_full() -> None:
    size = Size(workers=100, streams=6400, step_ms=25, tokens=300)
    n = gateways_for(size, COSTS)
    assert n == 5  # 256,000 tokens/s, 10.5 us each, with their requests
    each = simulate(dataclasses.replace(size, gateways=n), 4, COSTS, EVEN, 1.0).busiest["gateway"]
    assert 0.8 * FULL < each < 1.1 * FULL


def test_the_stored_run_predicts_a_table_of_all_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("load_tests.capacity.command.WORKERS", WORKERS[:3])
    stored = json.loads(MEASURED.read_text())
    found, spread = fit(stored["runs"]), spread_of(stored["runs"])
    arguments = argparse.Namespace(steps=4, tokens=300, near=0)
    table = predict(arguments, found, spread, NOTHING, {"worker": 9.0, "gateway": 24.0})
    sizes = [(w, m) for w in WORKERS[:3] for m in MASTERS if m <= w]
    assert [(int(row[0]), int(row[1])) for row in table.rows] == sizes
    assert len(table.head) == len(table.rows[0])
    first, last = float(table.rows[0][5]), float(table.rows[-1][5])
    assert 0 <= first < last
    assert "redis" in cost_table(found).text()
    assert {"cpu", "cores", "redis", "date"} <= stored["machine"].keys()
    assert stored["commit"]
    assert "--measure" in stored["command"]

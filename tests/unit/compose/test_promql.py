"""The checker of queries: what it lets through, and every kind of slip that it finds."""

from __future__ import annotations

import pytest

from tests.promql import Exports

TEXT = """
# TYPE seen_seconds histogram
seen_seconds_bucket{le="1.0"} 1
seen_seconds_bucket{le="+Inf"} 1
seen_seconds_count 1
seen_seconds_sum 1
# TYPE depth gauge
depth{pool="a",lane="flex"} 1
depth{pool="a",lane="default"} 1
# TYPE info gauge
info{pool="a",worker="w"} 1
"""


@pytest.fixture
def exports() -> Exports:
    exports = Exports()
    exports.add_scrape(TEXT, job="worker", instance="here:1")
    exports.add_words("lane", ["retry"])
    assert exports.add_rule("pool:depth:max", "max by (pool) (depth)") == []
    return exports


@pytest.mark.parametrize(
    "expr",
    [
        "histogram_quantile(0.9, sum by (le) (rate(seen_seconds_bucket[5m])))",
        'max by (pool) (depth{lane=~"flex|default|retry"})',
        'depth{pool=~".*"} > 3',
        "seen_seconds_count * on (job, instance) group_left (pool) info",
        "sum by (pool) (seen_seconds_count * on (job, instance) group_left (pool) info)",
        "rate(seen_seconds_count[5m]) and on (job, instance) info{pool=~'a'}",
        "(count(depth) or vector(0)) == 0",
        "pool:depth:max > 0 unless on (pool) sum by (pool) (info)",
        "time() - max by (pool) (depth)",
        "depth / on () group_left () max(info)",
        "max without (lane) (depth)",
    ],
)
def test_a_sound_query_passes(exports: Exports, expr: str) -> None:
    assert exports.problems(expr) == []


@pytest.mark.parametrize(
    ("expr", "says"),
    [
        ("rate(sene_seconds_count[5m])", "nothing exports sene_seconds_count"),
        ("sum by (pol) (depth)", "there is no label pol"),
        ("sum by (lane) (pool:depth:max)", "there is no label lane"),
        ('depth{lan="flex"}', "has no label lan"),
        ('depth{lane=~"flex|flax"}', "is never 'flax'"),
        ('seen_seconds_bucket{le="2.5"}', "is never '2.5'"),
        ("histogram_quantile(0.9, sum(rate(seen_seconds_bucket[5m])))", "there is no label le"),
        ("depth and info", "never match"),
        ("depth and on (worker) info", "there is no label worker"),
        ("seen_seconds_count * on (job, instance) group_left (lane) info", "no label lane"),
        ("sum by (worker) (depth * on (pool) info)", "there is no label worker"),
        ("rate(depth)", "expected type"),
        ("depth{", "depth{"),
    ],
)
def test_a_slip_is_found(exports: Exports, expr: str, says: str) -> None:
    problems = exports.problems(expr)
    assert any(says in problem for problem in problems), problems


def test_a_rule_is_checked_before_it_counts(exports: Exports) -> None:
    assert exports.add_rule("wrong", "max by (pool) (dept)")

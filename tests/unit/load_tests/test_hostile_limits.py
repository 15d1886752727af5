"""The limits of hostile requests: what breaks one, and what the noise of a machine does not."""

from __future__ import annotations

from typing import Any

import pytest

from load_tests.faults.hostile.catalogue import BASELINES, HOSTILE_REQUESTS, VLLM_HOSTILE_REQUESTS
from load_tests.faults.hostile.row import HostileRow, broken


def row(**changes: Any) -> HostileRow:
    fine: dict[str, Any] = {
        "title": "a request",
        "response": "400",
        "expected": "",
        "stall_ms": 60.0,
        "probe_ms": 5.0,
        "grown_mb": {"gateway": 20.0, "redis": 900.0, "worker": 30.0},
        "kept_mb": {"gateway": 0.0, "redis": 0.0, "worker": 0.0},
        "failures": {},
    }
    return HostileRow(**fine | changes)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, []),
        ({"stall_ms": 150.0}, []),
        ({"stall_ms": 151.0}, ["silent for 151 ms"]),
        ({"grown_mb": {"gateway": 201.0, "redis": 0.0, "worker": 0.0}}, ["the gateway grew"]),
        ({"grown_mb": {"gateway": 0.0, "redis": 0.0, "worker": 870.0}}, ["the worker grew"]),
        ({"failures": {"stream: cut, ": 1}}, ["other clients failed"]),
        ({"expected": "400"}, []),
        ({"expected": "all refused"}, ["without 'all refused'"]),
    ],
)
def test_a_row_breaks_limits(changes: dict[str, Any], words: list[str]) -> None:
    found = broken(row(**changes), idle_ms=50.0)
    assert len(found) == len(words)
    assert all(each in line for each, line in zip(words, found, strict=True))


def test_both_engines_have_the_baselines() -> None:
    for known in (HOSTILE_REQUESTS, VLLM_HOSTILE_REQUESTS):
        assert set(BASELINES) <= set(known)

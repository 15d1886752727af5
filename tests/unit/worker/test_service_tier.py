"""`service_tier`: the lane that it selects, and the answers that contain it."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from tests.unit.worker.bench import make_job
from worker.core.edits import TierEdit, requested_tier
from worker.core.output import EditedOutput


@pytest.mark.parametrize(
    ("body", "tier"),
    [
        ({"service_tier": "flex"}, "flex"),
        ({"service_tier": "auto"}, "default"),
        ({"service_tier": None}, ""),
        ({"service_tier": ["flex"]}, ""),
        ({"messages": [{"content": '"service_tier": "flex"'}]}, ""),
        ({"metadata": {"service_tier": "flex"}}, ""),
        ({}, ""),
    ],
)
def test_the_tier_of_a_request(body: Any, tier: str) -> None:
    assert requested_tier(json.dumps(body).encode()) == tier


def test_a_full_answer_contains_the_tier() -> None:
    answer = json.dumps({"id": "x", "service_tier": None, "text": "é"}).encode()
    named = json.loads(TierEdit("flex").whole(answer))
    assert named == {"id": "x", "service_tier": "flex", "text": "é"}
    for other in (b"", b"text", b"[1]"):
        assert TierEdit("flex").whole(other) == other


def test_each_chunk_contains_the_tier() -> None:
    buffer = EditedOutput(make_job(), Mock())
    buffer.edit = TierEdit("priority")
    buffer.chunk(b'data: {"id":"a","choices":[{"delta":{"content":"}"}}]}\n\n')
    buffer.chunk(b'data: {"id":"a"}\n\ndata: {"id":"b"}\n\ndata: [DONE]\n\n')
    buffer.chunk(b'data: {"error":{"message":"x"}}\n\n')
    events = b"".join(buffer._chunks).decode().split("\n\n")
    first, second, third, done, error, rest = (event.removeprefix("data: ") for event in events)
    assert json.loads(first)["choices"] == [{"delta": {"content": "}"}}]
    assert [json.loads(each)["service_tier"] for each in (first, second, third)] == ["priority"] * 3
    assert (done, rest) == ("[DONE]", "")
    assert json.loads(error) == {"error": {"message": "x"}}

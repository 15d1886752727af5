"""vLLM's own spans, below those of the job's attempt."""

from __future__ import annotations

import secrets

import pytest

from tests.harness.client import http
from tests.harness.collector import Collector, Span
from tests.harness.waiting import wait_for
from tests.vllm.conftest import ModelFleet, ServedModel

pytestmark = pytest.mark.vllm

NAME = "llm_request"


@pytest.fixture
def collector(fleet: ModelFleet) -> Collector:
    return fleet.collector


def ask(model: ServedModel, *, sampled: bool) -> str:
    """Send a request that its client wants traced, or not; returns the trace."""
    trace = secrets.token_hex(16)
    headers = {"traceparent": f"00-{trace}-{secrets.token_hex(8)}-{int(sampled):02}"}
    body = {"model": model.name, "prompt": "Hello", "max_tokens": 3, "ignore_eos": True}
    answer = http.post(
        f"{model.gateway_url}/v1/completions", json=body, headers=headers, timeout=60
    )
    assert answer.status_code == 200, answer.text
    return trace


def vllms_span(collector: Collector, trace: str) -> Span:
    """vLLM's span of a traced request, once it is there, and all above it."""

    def found() -> list[Span]:
        spans = collector.of(trace)
        return spans if {NAME, "attempt"} <= {span.name for span in spans} else []

    spans = wait_for(found, "both spans are there")
    (span,) = (span for span in spans if span.name == NAME)
    (attempt,) = (span for span in spans if span.name == "attempt")
    assert span.parent == attempt.id
    return span


def test_vllms_span_is_below_the_attempts(demo: ServedModel, collector: Collector) -> None:
    span = vllms_span(collector, ask(demo, sampled=True))
    assert span.attributes["gen_ai.usage.completion_tokens"] == 3


def test_vllm_records_nothing_of_a_job_that_is_not_traced(
    demo: ServedModel, collector: Collector
) -> None:
    before = sum(span.name == NAME for span in collector.spans)
    untraced = ask(demo, sampled=False)
    vllms_span(collector, ask(demo, sampled=True))  # its spans are sent in their order
    assert collector.of(untraced) == []
    assert sum(span.name == NAME for span in collector.spans) == before + 1

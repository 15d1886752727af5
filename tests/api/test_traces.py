"""Traces and log lines of jobs that several processes serve, with the simulated engine."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.harness.client import CHAT, chat, http
from tests.harness.collector import Collector, Span
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

FAST = {"sim_step_ms": 5, "sim_step_us_per_seq": 0}
SLOW_FIRST_TOKEN = {**FAST, "sim_prefill_us_per_token": 200_000}
BY_REQUEST = {"queue", "attempt", "delivery"}
"""Spans below the request's."""


class Traces:
    """Where all processes of a stack send their spans."""

    def __init__(self, collector: Collector) -> None:
        self._collector = collector
        self.settings: dict[str, Any] = {
            "otlp_traces_endpoint": collector.url,
            "log_level": "debug",
            "log_format": "json",
        }

    def wait(self, complete: Callable[[list[Span]], bool], what: str) -> list[Span]:
        """All spans, once `complete` is true of them."""
        wait_for(lambda: complete(self._collector.spans), what)
        return self._collector.spans


@pytest.fixture
def traces() -> Iterator[Traces]:
    with Collector() as collector:
        yield Traces(collector)


def named(spans: list[Span], name: str) -> list[Span]:
    return [span for span in spans if span.name == name]


def lines_about(process: Process, job_id: str) -> list[dict[str, Any]]:
    """The JSON lines of a process that are about this job."""
    lines = process.log.read_text().splitlines()
    parsed = [json.loads(line) for line in lines if line.startswith("{")]
    return [line for line in parsed if line.get("job_id") == job_id]


def stream_through_a_kill(
    stack: Stack, gateway: Process, settings: dict[str, Any], headers: dict[str, str]
) -> tuple[str, Process]:
    """Streams an answer whose worker w-1 is killed; w-2 continues it. Returns its job and w-2."""
    victim = stack.worker(worker_id="w-1", **FAST, **settings)
    body = chat("go on", max_tokens=300, stream=True, ignore_eos=True)
    url = f"{gateway.url}{CHAT}"
    with http.stream("POST", url, json=body, headers=headers, timeout=60) as answer:
        lines = answer.iter_lines()
        for _ in range(20):
            next(lines)
        victim.kill()
        survivor = stack.worker(worker_id="w-2", **FAST, **settings)
        assert [line for line in lines if line][-1] == "data: [DONE]"
        return answer.headers["x-flotilla-job-id"], survivor


def test_a_stream_through_a_kill_is_one_trace(stack: Stack, traces: Traces) -> None:
    gateway = stack.gateway(**traces.settings)
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    headers = {"traceparent": f"00-{trace}-{span}-01", "x-request-id": "req-7"}
    job_id, survivor = stream_through_a_kill(stack, gateway, traces.settings, headers)
    spans = traces.wait(
        lambda spans: bool(named(spans, "delivery") and named(spans, "decode")),
        "gateway and worker have written their spans",
    )
    assert {each.trace for each in spans} == {trace}
    (call,) = named(spans, f"POST {CHAT}")
    assert (call.service, call.parent) == ("flotilla-gateway", span)
    assert call.attributes["flotilla.job.id"] == job_id
    assert call.attributes["flotilla.request.id"] == "req-7"
    assert call.attributes["gen_ai.request.model"] == "simulated"

    below = [span.name for span in spans if span.parent == call.id]
    assert sorted(below) == ["attempt", "delivery"], "a worker that is killed writes nothing"
    (attempt,) = named(spans, "attempt")
    shown = [attempt.attributes[f"flotilla.{name}"] for name in ("attempt", "worker", "outcome")]
    assert (shown, attempt.failed) == ([2, "w-2", "completed"], False)
    assert attempt.attributes["gen_ai.usage.output_tokens"] == 300
    engine = [span.name for span in spans if span.parent == attempt.id]
    assert engine == ["prefill", "decode"]

    lines = lines_about(survivor, job_id)
    assert lines
    for line in lines:
        assert (line["worker"], line["attempt"], line["request_id"]) == ("w-2", 2, "req-7")
        assert line["trace_id"] == call.trace
    # The access log is written a moment after the answer.
    wait_for(
        lambda: lines_about(gateway, job_id)[-1]["message"] == f"POST {CHAT} 200",
        "the gateway has logged the answer",
    )
    answered = lines_about(gateway, job_id)[-1]
    assert (answered["request_id"], answered["trace_id"]) == ("req-7", call.trace)


def test_a_released_attempt_is_written_by_its_own_worker(stack: Stack, traces: Traces) -> None:
    """Before it ends."""
    gateway = stack.gateway(**traces.settings)
    draining = stack.worker(drain_deadline_s=0.2, **SLOW_FIRST_TOKEN, **traces.settings)
    body = {"body": chat("a prompt " * 20, max_tokens=3, ignore_eos=True)}
    job_id = http.post(f"{gateway.url}/jobs", json=body).json()["id"]
    url = f"{gateway.url}/jobs/{job_id}"
    wait_for(lambda: http.get(url).json()["state"] == "in_progress", "it is in progress")
    draining.terminate()
    assert draining.popen.wait(60) == 0
    stack.worker(**FAST, **traces.settings)
    spans = traces.wait(
        lambda spans: any(s.attributes.get("flotilla.attempt") == 2 for s in spans),
        "the second attempt is written",
    )
    (submitted,) = named(spans, "POST /jobs")
    assert submitted.parent == ""
    outcomes = [span.attributes["flotilla.outcome"] for span in named(spans, "attempt")]
    assert outcomes == ["drained", "completed"]
    assert {span.parent for span in named(spans, "attempt")} == {submitted.id}
    resumed = http.get(f"{url}/stream")
    assert resumed.status_code == 200
    spans = traces.wait(
        lambda spans: bool(named(spans, "GET /jobs/{id}/stream")), "the resumed answer is written"
    )
    (taken_up,) = named(spans, "GET /jobs/{id}/stream")
    assert (taken_up.trace, taken_up.parent) == (submitted.trace, submitted.id)

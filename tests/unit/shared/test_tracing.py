"""Spans: what is written, what a `traceparent` decides, what happens without tracing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from shared.job.trace_context import SpanRef, new_trace, parse, trace_id
from shared.platform import request_span, tracing
from shared.platform.request_span import RequestSpan
from shared.platform.settings import SettingsError, load_settings
from tests.harness.collector import Collector, Span
from tests.harness.settings import Settings, child_environment

TRACE, PARENT = "a" * 32, "b" * 16
SAMPLED = f"00-{TRACE}-{PARENT}-01"


@pytest.fixture
def collector() -> Iterator[Collector]:
    """Where this process sends its spans."""
    with Collector() as collector:
        tracing.set_up(collector.url, "gateway", "gw-1")
        yield collector
        tracing.shut_down()
    request_span._REQUEST.set(None)


def written(collector: Collector) -> list[Span]:
    tracing.shut_down()
    return collector.spans


def begun(*headers: tuple[bytes, bytes]) -> RequestSpan | None:
    request_span.begin(headers, lambda: False)
    return request_span.current()


@pytest.mark.parametrize(
    ("ratio", "sampled", "is_operator", "traced"),
    [
        (1.0, True, False, True),
        (0.0, True, False, False),
        (0.0, True, True, True),
        (0.0, False, True, False),
        (1.0, False, True, False),
    ],
)
def test_a_client_has_no_more_traced_than_the_share_an_operator_has(
    ratio: float, sampled: bool, is_operator: bool, traced: bool
) -> None:
    tracing.set_up("http://127.0.0.1:9/v1/traces", "gateway", "gw-1", ratio)
    try:
        sent = SAMPLED if sampled else SAMPLED[:-1] + "0"
        request_span.begin([(b"traceparent", sent.encode())], lambda: is_operator)
        span = request_span.current()
    finally:
        tracing.shut_down()
        request_span._REQUEST.set(None)
    assert (span is not None) is traced
    if span is not None:
        assert trace_id(span.ref.traceparent) == TRACE


# --- trace context ---


def test_a_traceparent_names_a_span() -> None:
    ref = parse(SAMPLED)
    assert ref == SpanRef(int(TRACE, 16), int(PARENT, 16), sampled=True)
    assert ref.traceparent == SAMPLED
    assert trace_id(SAMPLED) == TRACE
    assert parse(SAMPLED[:-1] + "0") == ref._replace(sampled=False)
    assert parse(f"01-{TRACE}-{PARENT}-03-more") == ref, "of a later version"


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "nonsense",
        SAMPLED.upper(),
        f"{SAMPLED}-more",
        f"ff-{TRACE}-{PARENT}-01",
        f"00-{'0' * 32}-{PARENT}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        SAMPLED[:-1],
    ],
)
def test_a_wrong_traceparent_names_none(wrong: str) -> None:
    assert parse(wrong) is None


def test_the_span_of_an_attempt_has_the_same_id_in_every_process() -> None:
    request = new_trace()
    first = request.attempt("job_1", 1)
    assert first == SpanRef(request.trace_id, request.span_id).attempt("job_1", 1)
    others = {request, request.child(), request.attempt("job_1", 2), request.attempt("job_2", 1)}
    assert first not in others
    assert {ref.trace_id for ref in others} == {first.trace_id}


# --- requests ---


def test_names_of_spans_have_no_ids_in_them(collector: Collector) -> None:
    for path in ("/jobs/job_00012af/retry", "/nothing/here"):
        span = begun()
        assert span is not None
        span.end("POST", path, 404 if "here" in path else 202, "", {})
    assert [span.name for span in written(collector)] == ["POST /jobs/{id}/retry", "POST"]


def test_a_request_that_only_reads_is_not_written(collector: Collector) -> None:
    span = begun()
    assert span is not None
    span.end("GET", "/jobs/job_1", 200, "", {})
    assert written(collector) == []


# --- off, and where spans go ---


def test_without_an_endpoint_nothing_is_written_and_a_job_has_no_trace() -> None:
    tracing.set_up("", "gateway", "gw-1")
    assert begun((b"traceparent", SAMPLED.encode())) is None
    assert not tracing.is_on()
    assert tracing.engine_headers(new_trace()) == ()
    tracing.write("nothing", new_trace(), None, (0, 1))


def test_without_an_endpoint_no_exporter_is_imported() -> None:
    code = "import sys, gateway.__main__, worker.__main__, worker.engines.simulated.engine\n"
    code += "sys.exit('opentelemetry.exporter' in sys.modules)"
    environment = child_environment()
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=150, check=True)


def test_missing_packages_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry_of_another_world.sdk",))
    tracing.check("")
    with pytest.raises(SettingsError, match=r"pip install 'flotilla\[tracing\]'"):
        tracing.check("http://127.0.0.1:4318/v1/traces")


@pytest.mark.parametrize("wrong", ["127.0.0.1:4317", "http://", "grpc://c:4317/", "file:///a"])
def test_a_wrong_endpoint_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"OTLP_TRACES_ENDPOINT|otlp-traces-endpoint"):
        load_settings(Settings, otlp_traces_endpoint=wrong)

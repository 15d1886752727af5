"""Spans: what is written, what a `traceparent` decides, what happens without tracing."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from shared.job.job import Attempt, Job
from shared.job.states import JobState
from shared.job.trace_context import SpanRef, new_trace, parse, trace_id
from shared.platform import request_span, tracing
from shared.platform.request_span import RequestSpan
from shared.platform.settings import SettingsError, load_settings
from shared.store.redis.lost_attempts import write_lost_attempts
from tests.harness.servers import free_port
from tests.harness.settings import Settings, child_environment
from tests.harness.spans import Span, read_spans

TRACE, PARENT = "a" * 32, "b" * 16
SAMPLED = f"00-{TRACE}-{PARENT}-01"
CHAT = "/v1/chat/completions"


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    """Where this process writes its spans."""
    path = tmp_path / "spans.jsonl"
    tracing.set_up(f"file://{path}", "gateway", "gw-1")
    yield path
    tracing.shut_down()
    request_span._REQUEST.set(None)


def written(path: Path) -> list[Span]:
    tracing.shut_down()
    return read_spans(path)


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
    tmp_path: Path, ratio: float, sampled: bool, is_operator: bool, traced: bool
) -> None:
    tracing.set_up(f"file://{tmp_path}/spans.jsonl", "gateway", "gw-1", ratio)
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


def test_a_request_and_its_delivery_are_in_the_trace_of_the_client(file: Path) -> None:
    span = begun((b"accept", b"*/*"), (b"traceparent", SAMPLED.encode()))
    assert span is not None
    traceparent = span.submit(CHAT, "m", "pool", "default")
    span.output_sent()
    span.end("POST", CHAT, 200, "", {tracing.JOB: "job_1"})
    request, delivery = written(file)
    assert traceparent == f"00-{TRACE}-{request.id}-01"
    assert (request.name, request.trace, request.parent) == (f"POST {CHAT}", TRACE, PARENT)
    assert (request.service, request.instance) == ("flotilla-gateway", "gw-1")
    assert request.attributes == {
        "http.request.method": "POST",
        "url.path": CHAT,
        "http.response.status_code": 200,
        "gen_ai.operation.name": "chat",
        "gen_ai.request.model": "m",
        "flotilla.pool": "pool",
        "flotilla.lane": "default",
        "flotilla.job.id": "job_1",
    }
    assert not request.failed
    assert (delivery.name, delivery.parent) == ("delivery", request.id)
    assert request.began_ns <= delivery.began_ns <= delivery.ended_ns == request.ended_ns


def test_a_refused_request_has_failed(file: Path) -> None:
    span = begun()
    assert span is not None
    span.end("POST", CHAT, 429, "queue_full", {})
    (request,) = written(file)
    assert request.failed
    assert request.attributes["error.type"] == "queue_full"
    assert request.parent == ""


def test_names_of_spans_have_no_ids_in_them(file: Path) -> None:
    for path in ("/jobs/job_00012af/retry", "/nothing/here"):
        span = begun()
        assert span is not None
        span.end("POST", path, 404 if "here" in path else 202, "", {})
    assert [span.name for span in written(file)] == ["POST /jobs/{id}/retry", "POST"]


def test_a_request_that_only_reads_is_not_written(file: Path) -> None:
    span = begun()
    assert span is not None
    span.end("GET", "/jobs/job_1", 200, "", {})
    assert written(file) == []


def test_a_resumed_answer_is_in_the_trace_of_its_job(file: Path) -> None:
    span = begun()
    assert span is not None
    span.join(SAMPLED)
    span.end("GET", "/jobs/job_1/stream", 200, "", {})
    (request,) = written(file)
    assert (request.trace, request.parent) == (TRACE, PARENT)


def test_a_client_that_resumes_may_have_a_trace_of_its_own(file: Path) -> None:
    span = begun((b"traceparent", SAMPLED.encode()))
    assert span is not None
    span.join(new_trace().traceparent)
    span.end("GET", "/jobs/job_1/stream", 200, "", {})
    (request,) = written(file)
    assert (request.trace, request.parent) == (TRACE, PARENT)


# --- lost attempts ---


def job(*attempts: Attempt) -> Job:
    return Job(
        "job_1", JobState.IN_PROGRESS, "t", "p", "default", "m", CHAT, True, 100.0, 0, None, None,
        None, None, None, "", 60, attempts, {}, "", 0, "", b"", None, 0,
    )  # fmt: skip


def lost(worker: str, began: float, ended: float) -> Attempt:
    return Attempt(worker, began, ended, "worker_lost", 5)


def test_attempts_of_lost_workers_are_written_by_others(file: Path) -> None:
    request = new_trace()
    running = Attempt("w-3", 131, None, "in_progress")
    record = job(lost("w-1", 101, 110), lost("w-2", 112, 130), running)
    assert write_lost_attempts(record, request, generation=3, behind_s=1000) == 1130
    queue1, first, queue2, second = written(file)
    assert [span.name for span in (queue1, first, queue2, second)] == ["queue", "attempt"] * 2
    parent = f"{request.span_id:016x}"
    assert {span.parent for span in (queue1, first, queue2, second)} == {parent}
    assert first.id == f"{request.attempt('job_1', 1).span_id:016x}"
    assert second.id == f"{request.attempt('job_1', 2).span_id:016x}"
    assert first.attributes == {
        "flotilla.job.id": "job_1",
        "flotilla.attempt": 1,
        "flotilla.worker": "w-1",
        "flotilla.outcome": "worker_lost",
        "flotilla.log.entries": 5,
    }
    assert first.failed
    assert second.failed
    seconds = [(s.began_ns / 1e9, s.ended_ns / 1e9) for s in (queue1, first, queue2, second)]
    assert seconds == [(1100, 1101), (1101, 1110), (1110, 1112), (1112, 1130)]


def test_attempts_that_workers_have_written_are_not_written_again(file: Path) -> None:
    drained = Attempt("w-2", 112, 130, "drained", 3)
    record = job(lost("w-1", 101, 110), drained)
    assert write_lost_attempts(record, new_trace(), 3, 0) == 130
    assert write_lost_attempts(job(), new_trace(), 1, 0) is None
    assert written(file) == []


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
    subprocess.run([sys.executable, "-c", code], env=environment, timeout=60, check=True)


def test_an_engine_gets_the_attempt_or_that_nothing_is_recorded(file: Path) -> None:
    attempt = new_trace()
    assert tracing.engine_headers(attempt) == ((b"traceparent", attempt.traceparent.encode()),)
    ((_, untraced),) = tracing.engine_headers(None)
    assert untraced.endswith(b"-00")
    assert parse(untraced.decode()) is not None


def test_missing_packages_are_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing, "_PACKAGES", ("opentelemetry_of_another_world.sdk",))
    tracing.check("")
    with pytest.raises(SettingsError, match=r"pip install 'flotilla\[tracing\]'"):
        tracing.check("http://127.0.0.1:4318/v1/traces")


@pytest.mark.parametrize("wrong", ["127.0.0.1:4317", "http://", "grpc://c:4317/", "file://"])
def test_a_wrong_endpoint_is_refused(wrong: str) -> None:
    with pytest.raises(SettingsError, match=r"OTLP_TRACES_ENDPOINT|otlp-traces-endpoint"):
        load_settings(Settings, otlp_traces_endpoint=wrong)


def test_a_collector_gets_the_spans_by_http() -> None:
    requests: list[tuple[str, bytes]] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            requests.append((self.path, body))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        endpoint = f"http://127.0.0.1:{server.server_port}/v1/traces"
        tracing.set_up(endpoint, "worker", "w-1")
        tracing.write("attempt", new_trace(), None, (1, 2))
        tracing.shut_down()
        server.shutdown()
        thread.join()
    ((path, body),) = requests
    assert path == "/v1/traces"
    (resource,) = ExportTraceServiceRequest.FromString(body).resource_spans
    values = {pair.key: pair.value.string_value for pair in resource.resource.attributes}
    assert values["service.name"] == "flotilla-worker"
    assert resource.scope_spans[0].spans[0].name == "attempt"


def test_a_collector_that_is_away_delays_the_end_by_a_moment_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    exporter = tracing._exporter(f"http://127.0.0.1:{free_port()}/v1/traces")
    monkeypatch.setattr(tracing, "_exporter", lambda endpoint: exporter)
    tracing.set_up("http://away/", "worker", "w-1")
    tracing.write("attempt", new_trace(), None, (1, 2))
    began = time.monotonic()
    tracing.shut_down()
    assert time.monotonic() - began < 30
    exporter.shutdown()  # the threads would go on into the next tests
    for thread in threading.enumerate():
        if "BatchSpan" in thread.name:
            thread.join(10)
            assert not thread.is_alive()

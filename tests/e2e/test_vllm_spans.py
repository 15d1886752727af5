"""vLLM's own spans, below those of the job's attempt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from shared.job.trace_context import SpanRef, new_trace
from shared.platform import tracing
from tests.harness.asgi_client import call
from worker.demo import MODEL_NAME
from worker.engines.interface import Engine
from worker.engines.vllm.arguments import tracing_args

pytestmark = [pytest.mark.asyncio(loop_scope="session"), pytest.mark.vllm]

HTTP = "http://127.0.0.1:4318/v1/traces"


@pytest.fixture
def exported(
    vllm_engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> Iterator[InMemorySpanExporter]:
    """vLLM's spans, as if it had been started with --otlp-traces-endpoint."""
    exporter, provider = InMemorySpanExporter(), TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr("opentelemetry.trace._TRACER_PROVIDER", provider)
    client = vllm_engine._engine  # type: ignore[attr-defined]
    monkeypatch.setattr(client.output_processor, "tracing_enabled", True)
    monkeypatch.setattr(client.observability_config, "otlp_traces_endpoint", HTTP)
    monkeypatch.setattr(tracing, "_pipeline", object())
    yield exporter
    provider.shutdown()


async def ask(engine: Engine, attempt: SpanRef | None) -> None:
    headers = {name.decode(): value.decode() for name, value in tracing.engine_headers(attempt)}
    body = {"model": MODEL_NAME, "prompt": "Hello", "max_tokens": 3}
    assert (await call(engine, "POST", "/v1/completions", body, headers)).status == 200


async def test_vllms_span_is_below_the_attempts(
    vllm_engine: Engine, exported: InMemorySpanExporter
) -> None:
    attempt = new_trace()
    await ask(vllm_engine, attempt)
    (span,) = [each for each in exported.get_finished_spans() if each.name == "llm_request"]
    assert span.parent is not None
    assert (span.parent.trace_id, span.parent.span_id) == attempt[:2]
    assert span.attributes is not None
    assert span.attributes["gen_ai.usage.completion_tokens"] == 3


async def test_vllm_records_nothing_of_a_job_that_is_not_traced(
    vllm_engine: Engine, exported: InMemorySpanExporter
) -> None:
    await ask(vllm_engine, None)
    assert exported.get_finished_spans() == ()


async def test_vllm_gets_the_endpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in tracing.ENGINE_VARIABLES:
        monkeypatch.setenv(name, "as it was")
    option = "--otlp-traces-endpoint"
    assert tracing_args(HTTP, "") == [option, HTTP]
    assert tracing_args(HTTP, f"{option} http://other:4317") == []
    assert tracing_args("file:///tmp/spans.jsonl", "") == []
    assert tracing_args("", "") == []

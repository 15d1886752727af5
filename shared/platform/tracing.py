"""Traces: the module that names OpenTelemetry and its GenAI conventions.

Off unless `FLOTILLA_OTLP_TRACES_ENDPOINT` is set: a request costs a few comparisons then. The spans
of a trace:

| span | written by | from | to |
|---|---|---|---|
| `POST /v1/...` | gateway (request_span.py) | request | end of its answer |
| `delivery` | gateway | first output sent | end of the answer |
| `queue` | worker (worker/core/trace.py) | submit | first lease |
| `attempt` | worker | lease | end of the run |
| `prefill`, `decode` | worker | start of the run, first output | first output, end of the run |
| `llm_request` | vLLM | its own span, below the attempt's | |

The record and the lease of a job have the `traceparent` of the request's span, so the spans of all
processes are in one trace. A span is written when it has ended, by the wall clock of its process.
The id of an attempt's span is made of the job and the number of its lease. A worker that was killed
writes none; the job's own list of attempts has it.

OpenTelemetry's own variables have their effect, as `OTEL_EXPORTER_OTLP_HEADERS`.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from shared.job.trace_context import NOT_SAMPLED, SpanRef
from shared.platform.settings import SettingsError

Value = str | int | float | bool
Attributes = Mapping[str, Value]

# The GenAI conventions, as of November 2026; their status is "development".
OPERATION, MODEL = "gen_ai.operation.name", "gen_ai.request.model"
INPUT_TOKENS, OUTPUT_TOKENS = "gen_ai.usage.input_tokens", "gen_ai.usage.output_tokens"
_OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/responses": "chat",
    "/v1/messages": "chat",
    "/v1/completions": "text_completion",
    "/v1/embeddings": "embeddings",
    "/v2/embed": "embeddings",
}
# Ours.
JOB, REQUEST, TENANT = "flotilla.job.id", "flotilla.request.id", "flotilla.tenant"
POOL, LANE, WORKER = "flotilla.pool", "flotilla.lane", "flotilla.worker"
ATTEMPT, OUTCOME = "flotilla.attempt", "flotilla.outcome"

ENGINE_VARIABLES = {
    "OTEL_SERVICE_NAME": "vllm",
    "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
}
"""For vLLM, which sends its spans itself, to the same collector."""

_PACKAGES = ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http")
_EXPORT_EVERY_MS = 1000
"""What a process that is killed may lose."""
_END_S = 2.0


def job_attributes(endpoint: str, model: str, pool: str, lane: str) -> dict[str, Value]:
    """The attributes of a request that submits a job."""
    operation = _OPERATIONS.get(endpoint) or endpoint.rpartition("/")[2]
    return {OPERATION: operation, MODEL: model, POOL: pool, LANE: lane}


def http_attributes(method: str, path: str, status: int, error: str) -> dict[str, Value]:
    """The attributes of an answered request."""
    attributes: dict[str, Value] = {
        "http.request.method": method,
        "url.path": path,
        "http.response.status_code": status,
    }
    return attributes | {"error.type": error or str(status)} if status >= 400 else attributes


def engine_headers(attempt: SpanRef | None) -> tuple[tuple[bytes, bytes], ...]:
    """What the engine's application gets with a job. `attempt`: None if the job is not traced.

    Without a `traceparent` vLLM would begin a trace.
    """
    if _pipeline is None:
        return ()
    return ((b"traceparent", (attempt or NOT_SAMPLED).traceparent.encode()),)


def check(endpoint: str) -> None:
    """Raises SettingsError if tracing is on but its packages are not installed."""
    if endpoint and not all(map(_is_installed, _PACKAGES)):
        raise SettingsError(
            "FLOTILLA_OTLP_TRACES_ENDPOINT needs packages that are not installed: "
            "pip install 'flotilla[tracing]'"
        )


def set_up(endpoint: str, service: str, instance: str, ratio: float = 1.0) -> None:
    """Write spans from now on, unless `endpoint` is empty. Call `check` before.

    `service` is `gateway` or `worker`, `instance` the id of the process, `ratio` the share of
    requests that are traced where their client has not decided it.
    """
    shut_down()
    if endpoint:
        _set_pipeline(_Pipeline(endpoint, service, instance, ratio))


def shut_down() -> None:
    """Send what is left, for at most some seconds, and write no more."""
    if _pipeline is not None:
        # A thread of its own: a collector that does not answer would block for much longer.
        thread = threading.Thread(target=_pipeline.provider.shutdown, daemon=True)
        _set_pipeline(None)
        thread.start()
        thread.join(_END_S)


def is_on() -> bool:
    """Whether this process writes spans."""
    return _pipeline is not None


def sample_ratio() -> float:
    """Share of requests that are traced where their client has not decided it."""
    return 0.0 if _pipeline is None else _pipeline.ratio


def write(
    name: str,
    ref: SpanRef,
    parent: SpanRef | None,
    period: tuple[float, float],
    attributes: Attributes | None = None,
    error: str = "",
    *,
    server: bool = False,
) -> None:
    """Write a span that has ended; nothing if tracing is off.

    `period`: its start and its end, Unix seconds; `error`: what went wrong, empty if nothing did;
    `server`: it answers a request.
    """
    if _pipeline is not None:
        _pipeline.write(name, ref, parent, period, attributes or {}, error, server=server)


class _Pipeline:
    """OpenTelemetry's: from spans that have ended to a collector."""

    def __init__(self, endpoint: str, service: str, instance: str, ratio: float) -> None:
        from opentelemetry import context, trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
        from opentelemetry.sdk.trace.sampling import ALWAYS_ON

        self.ratio = ratio
        self._api, self._context, self._ids = trace, context.Context, _id_generator()
        release = version("flotilla")
        resource = {
            "service.name": f"flotilla-{service}",
            "service.version": release,
            "service.instance.id": instance,
        }
        # Not the global provider, which is vLLM's.
        self.provider = TracerProvider(
            sampler=ALWAYS_ON,
            resource=Resource.create(resource),
            shutdown_on_exit=False,
            id_generator=self._ids,
        )
        exporter = OTLPSpanExporter(endpoint=endpoint)
        processor = BatchSpanProcessor(exporter, schedule_delay_millis=_EXPORT_EVERY_MS)
        self.provider.add_span_processor(processor)
        self._tracer = self.provider.get_tracer("flotilla", release)

    def write(
        self,
        name: str,
        ref: SpanRef,
        parent: SpanRef | None,
        period: tuple[float, float],
        attributes: Attributes,
        error: str,
        *,
        server: bool,
    ) -> None:
        """See the module's `write`."""
        api, context = self._api, self._context()
        if parent is not None:
            flags = api.TraceFlags(api.TraceFlags.SAMPLED)
            above = api.SpanContext(parent.trace_id, parent.span_id, True, flags)
            context = api.set_span_in_context(api.NonRecordingSpan(above), context)
        self._ids.next = ref
        began_at, ended_at = period
        span = self._tracer.start_span(
            name,
            context=context,
            kind=api.SpanKind.SERVER if server else api.SpanKind.INTERNAL,
            attributes=dict(attributes),
            start_time=int(began_at * 1e9),
        )
        if error:
            span.set_status(api.StatusCode.ERROR, error)
        span.end(int(max(began_at, ended_at) * 1e9))


_pipeline: _Pipeline | None = None


def _set_pipeline(pipeline: _Pipeline | None) -> None:
    global _pipeline
    _pipeline = pipeline


def _id_generator() -> Any:
    """Gives each span the ids that `next` has."""
    from opentelemetry.sdk.trace.id_generator import IdGenerator

    class Ids(IdGenerator):  # type: ignore[misc]
        next = NOT_SAMPLED

        def generate_span_id(self) -> int:
            return self.next.span_id

        def generate_trace_id(self) -> int:
            return self.next.trace_id

    return Ids()


def _is_installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # of its parent
        return False

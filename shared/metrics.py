"""Every metric's name, help and buckets. Own prefix, base units; no label by job, key or prompt.

vLLM's own `vllm:*` metrics stand beside the worker's, untouched.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 1800)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class FastHistogram(Collector):
    """A histogram without labels, cheap enough to be told of every token."""

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        self._name, self._help = name, text
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def collect(self) -> Iterable[Metric]:
        total, buckets = 0, []
        for bound, count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            total += count
            buckets.append(("+Inf" if bound == float("inf") else str(bound), total))
        family = HistogramMetricFamily(self._name, self._help)
        family.add_metric([], buckets, self._sum)
        yield family


class GatewayMetrics:
    """What a gateway process counts, and what it reads from Redis when it is scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.submitted = Counter(
            "flotilla_jobs_submitted_total",
            "Jobs put in a lane",
            ["pool", "lane"],
            registry=registry,
        )
        self.refused = Counter(
            "flotilla_requests_refused_total",
            "Requests that were answered with an error before they became a job",
            ["code"],
            registry=registry,
        )
        self.ttft = FastHistogram(
            "flotilla_ttft_seconds",
            "From a streamed request's arrival to the first bytes of its answer",
            _SECONDS,
        )
        registry.register(self.ttft)
        answer_seconds = Histogram(
            "flotilla_answer_seconds",
            "From a request's arrival to the end of its answer",
            ["stream"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.answer_seconds = {
            stream: answer_seconds.labels(str(stream).lower()) for stream in (False, True)
        }
        """By whether the answer is streamed."""
        self.itl = FastHistogram(
            "flotilla_inter_token_seconds",
            "Between two chunks of one stream, as they reach the gateway",
            _TOKEN_SECONDS,
        )
        registry.register(self.itl)
        self.open_streams = Gauge(
            "flotilla_open_streams",
            "Clients that wait for an answer or read one",
            registry=registry,
        )
        self.gaps = Counter(
            "flotilla_stream_gaps_total",
            "Times that a reader had to read the log because pub/sub lost a frame",
            registry=registry,
        )
        self.cancelled_by_disconnect = Counter(
            "flotilla_disconnects_total", "Clients that left before the end", registry=registry
        )
        lane = ["pool", "lane"]
        self.waiting = Gauge("flotilla_queue_depth", "Jobs that wait", lane, registry=registry)
        self.oldest = Gauge(
            "flotilla_queue_oldest_age_seconds", "Longest wait in a lane", lane, registry=registry
        )
        self.jobs = Gauge(
            "flotilla_jobs",
            "Jobs that have not ended, by state",
            ["pool", "state"],
            registry=registry,
        )
        self.workers = Gauge(
            "flotilla_workers", "Workers by state", ["pool", "state"], registry=registry
        )


class WorkerMetrics:
    """What a worker process counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.finished = Counter(
            "flotilla_jobs_finished_total", "Jobs this worker ended", ["state"], registry=registry
        )
        self.released = Counter(
            "flotilla_jobs_released_total", "Jobs handed back", ["reason"], registry=registry
        )
        self.queue_wait = FastHistogram(
            "flotilla_queue_wait_seconds", "From submit to the lease, by Redis' clock", _SECONDS
        )
        self.first_token = FastHistogram(
            "flotilla_worker_first_token_seconds", "From the lease to the first token", _SECONDS
        )
        self.job_seconds = FastHistogram(
            "flotilla_job_duration_seconds", "From the lease to the end", _SECONDS
        )
        for histogram in (self.queue_wait, self.first_token, self.job_seconds):
            registry.register(histogram)
        self.tokens = Counter(
            "flotilla_tokens_total", "Tokens of ended jobs", ["kind"], registry=registry
        )
        self.fenced = Counter(
            "flotilla_fenced_writes_total",
            "Writes refused because the job was not this worker's any more",
            ["state"],
            registry=registry,
        )
        self.slots = Gauge(
            "flotilla_worker_slots",
            "Sequences the engine may run, by use",
            ["use"],
            registry=registry,
        )
        self.kv_usage = Gauge(
            "flotilla_worker_kv_usage_ratio", "KV cache in use", registry=registry
        )
        self.steps = Counter("flotilla_engine_steps_total", "Engine steps", registry=registry)
        self.flushes = Counter(
            "flotilla_flushes_total", "Script calls that carried tokens", registry=registry
        )
        self.state = Gauge(
            "flotilla_worker_state",
            "1 for the state the worker is in",
            ["state"],
            registry=registry,
        )

"""Every metric's name, help and buckets. Own prefix, base units; no label by job, key or prompt.

vLLM's own `vllm:*` metrics stand beside the worker's, untouched. What the metrics are for, and the
dashboards and alerts over them, is in compose/observability/. Words that are known beforehand are
set to 0 at start: Prometheus' `increase` does not see the first one of a series that was not there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from shared.api import errors
from shared.platform import eviction
from shared.platform.collectors import FastCounter, FastCounters, FastHistogram, FastHistograms
from shared.protocol.states import JobState

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 30, 60, 300, 1800)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class RedisReading(Collector):
    """What Redis said of itself when the process was scraped; nothing where it says nothing."""

    def __init__(self) -> None:
        self.infos: Sequence[Mapping[str, Any]] = ()
        """INFO of each server that holds shards; empty while it can't be asked."""

    def collect(self) -> Iterable[Metric]:
        for family, name, text, read in _REDIS:
            metric = family(name, text, labels=["server"])
            for place, info in enumerate(self.infos):
                with contextlib.suppress(KeyError):  # a managed Redis keeps this to itself
                    metric.add_metric([str(place)], read(info))
            if metric.samples:
                yield metric


_REDIS: Sequence[
    tuple[
        type[GaugeMetricFamily] | type[CounterMetricFamily],
        str,
        str,
        Callable[[Mapping[str, Any]], float],
    ]
] = (
    (
        GaugeMetricFamily,
        "flotilla_redis_memory_used_bytes",
        "Memory that Redis uses",
        lambda info: info["used_memory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_memory_limit_bytes",
        "Memory that Redis may use; 0 is no limit",
        lambda info: info["maxmemory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_enabled",
        "1 if jobs survive the end of Redis",
        lambda info: info["aof_enabled"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_ok",
        "1 if the last write to the append-only file and its last rewrite went well",
        lambda info: info["aof_last_write_status"] == info["aof_last_bgrewrite_status"] == "ok",
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_clients",
        "Connections to Redis",
        lambda info: info["connected_clients"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_uptime_seconds",
        "Since Redis has started",
        lambda info: info["uptime_in_seconds"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_commands_total",
        "Commands that Redis has carried out; a script call counts its own as well",
        lambda info: info["total_commands_processed"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_cpu_seconds_total",
        "CPU time of Redis; its commands share one core",
        lambda info: info["used_cpu_user"] + info["used_cpu_sys"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_rejected_connections_total",
        "Connections that Redis refused because of its maxclients",
        lambda info: info["rejected_connections"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_evicted_keys_total",
        "Keys that Redis threw away to make room: jobs among them",
        lambda info: info["evicted_keys"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_evicts",
        "1 if Redis is set to throw keys away when its memory is full",
        lambda info: bool(eviction.problem(info)),
    ),
)


def _tell_version(registry: CollectorRegistry) -> None:
    build = Gauge(
        "flotilla_build_info", "1, with Flotilla's version", ["version"], registry=registry
    )
    build.labels(version("flotilla")).set(1)


def _refusals() -> set[str]:
    """What `flotilla_requests_refused_total` may say, from the tree of errors."""
    kinds, codes = [errors.FlotillaError], set()
    for kind in kinds:
        kinds += kind.__subclasses__()
        if not issubclass(kind, errors.JobFailed):  # a job is none of the refused
            codes.add(kind.code or kind.type)
    return codes


class ReaperMetrics:
    """What a process' reaper has done; any gateway or worker may be the one that does it."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reaped = Counter(
            "flotilla_reaped_jobs_total",
            "Jobs of silent workers, and jobs whose deadline passed, by what became of them",
            ["state"],
            registry=registry,
        )
        for state in (JobState.QUEUED, JobState.FAILED, JobState.EXPIRED):
            self.reaped.labels(state)


class GatewayMetrics:
    """What a gateway process counts, and what it reads from Redis when it is scraped."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _tell_version(registry)
        self.reaper = ReaperMetrics(registry)
        self.ready = Gauge(
            "flotilla_gateway_ready",
            "1 if this check of /readyz passes",
            ["check"],
            registry=registry,
        )
        self.redis_writable = Gauge(
            "flotilla_redis_writable",
            "1 if the last test write to this server of shards went well",
            ["server"],
            registry=registry,
        )
        self.submitted = FastCounters(
            "flotilla_jobs_submitted_total", "Jobs put in a lane", ["pool", "lane"]
        )
        registry.register(self.submitted)
        self.refused = Counter(
            "flotilla_requests_refused_total",
            "Requests that were answered with an error before they became a job",
            ["code"],
            registry=registry,
        )
        for code in _refusals():
            self.refused.labels(code)
        self.wrong_keys = Counter(
            "flotilla_wrong_keys_total",
            "Requests with an API key that is not known, by how they were answered",
            ["answer"],
            registry=registry,
        )
        for answer in ("at_once", "delayed", "refused"):
            self.wrong_keys.labels(answer)
        self.connections = Gauge(
            "flotilla_connections", "Open connections of clients", registry=registry
        )
        self.connections_limit = Gauge(
            "flotilla_connections_limit",
            "Connections of clients for which there are file descriptors",
            registry=registry,
        )
        self.connections_closed = Counter(
            "flotilla_connections_closed_total",
            "Connections closed although their client had no answer, by the limit that was reached",
            ["limit"],
            registry=registry,
        )
        for limit in ("time", "address", "descriptors"):
            self.connections_closed.labels(limit)
        self.ttft = FastHistogram(
            "flotilla_ttft_seconds",
            "From a streamed request's arrival to the first bytes of its answer",
            _SECONDS,
        )
        registry.register(self.ttft)
        answers = FastHistograms(
            "flotilla_answer_seconds",
            "From a request's arrival to the end of its answer",
            _SECONDS,
            "stream",
            ("false", "true"),
        )
        registry.register(answers)
        self.answer_seconds = {
            stream: answers.by_value[str(stream).lower()] for stream in (False, True)
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
        self.wanted = Gauge(
            "flotilla_autoscale_wanted_workers",
            "Workers that the autoscaler wants",
            ["pool"],
            registry=registry,
        )
        self.bounds = Gauge(
            "flotilla_autoscale_limit_workers",
            "Workers that the autoscaler may want, least and most",
            ["pool", "bound"],
            registry=registry,
        )
        self.expected_wait = Gauge(
            "flotilla_autoscale_wait_seconds",
            "What a job that comes now has to wait, start of workers included; none if not known",
            ["pool"],
            registry=registry,
        )
        self.decision_age = Gauge(
            "flotilla_autoscale_decision_age_seconds",
            "Since the autoscaler's last decision; grows while it is silent",
            ["pool"],
            registry=registry,
        )
        self.depth_limit = Gauge(
            "flotilla_queue_depth_limit", "Jobs that may wait in one lane", registry=registry
        )
        self.dead_letters = Gauge(
            "flotilla_dead_letters",
            "Jobs given up because every worker that tried them was lost; about 10,000 are kept",
            registry=registry,
        )
        self.maintenance = Gauge(
            "flotilla_maintenance_last_run_timestamp_seconds",
            "When a maintenance task was last done to its end by any maintenance process, Unix time",
            ["task"],
            registry=registry,
        )
        self.redis = RedisReading()
        registry.register(self.redis)


class WorkerMetrics:
    """What a worker process counts."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _tell_version(registry)
        self.reaper = ReaperMetrics(registry)
        self.info = Gauge(
            "flotilla_worker_info",
            "1, with what this process serves; gives other metrics of the process their pool",
            ["worker", "pool", "engine"],
            registry=registry,
        )
        self.finished = FastCounters(
            "flotilla_jobs_finished_total",
            "Jobs this worker ended; `code` says why they failed, if so",
            ["state", "code"],
        )
        registry.register(self.finished)
        self.finished.of(JobState.COMPLETED, "")
        for code in ("rejected", "engine_error"):
            self.finished.of(JobState.FAILED, code)
        self.released = Counter(
            "flotilla_jobs_released_total", "Jobs handed back", ["reason"], registry=registry
        )
        for reason in ("drained", "engine_died", "id_taken", "run_failed"):
            self.released.labels(reason)
        self.retried = Counter(
            "flotilla_jobs_retried_total",
            "Leases of jobs that had been lost with an earlier worker",
            registry=registry,
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
        tokens = FastCounters("flotilla_tokens_total", "Tokens of ended jobs", ["kind"])
        registry.register(tokens)
        self.prompt_tokens = tokens.of("prompt")
        self.completion_tokens = tokens.of("completion")
        self.fenced = Counter(
            "flotilla_fenced_writes_total",
            "Writes refused because the job was not this worker's any more",
            ["state"],
            registry=registry,
        )
        for state in (*JobState, "gone"):
            self.fenced.labels(state)
        self.slots = Gauge(
            "flotilla_worker_slots",
            "Sequences the engine may run, by use",
            ["use"],
            registry=registry,
        )
        self.kv_usage = Gauge(
            "flotilla_worker_kv_usage_ratio", "KV cache in use", registry=registry
        )
        self.steps = FastCounter("flotilla_engine_steps_total", "Engine steps")
        self.flushes = FastCounter("flotilla_flushes_total", "Script calls that carried tokens")
        registry.register(self.steps)
        registry.register(self.flushes)
        self.state = Gauge(
            "flotilla_worker_state",
            "1 for the state the worker is in",
            ["state"],
            registry=registry,
        )

"""Every metric: name, help text, labels and buckets.

Names have the prefix `flotilla_` and base units. No label holds a job, a key or a prompt. vLLM's
own `vllm:*` metrics are served beside the worker's, unchanged. compose/observability/ has the
dashboards and alerts, and describes them.

Label values that are known beforehand are set to 0 at start, because Prometheus' `increase` misses
the first increment of a series that did not exist before.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from shared.job import errors
from shared.job.states import JobState
from shared.platform.collectors import FastCounter, FastCounters, FastHistogram, FastHistograms
from shared.store.redis import eviction

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 1.5, 2, 2.5, 5, 10, 30, 60, 300, 1800)
_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class RedisReading(Collector):
    """Metrics from the servers' INFO, read at each scrape. What a server hides is left out."""

    def __init__(self) -> None:
        self.infos: Sequence[Mapping[str, Any]] = ()
        """INFO of each server that holds shards, in order; empty while it can't be read."""

    def collect(self) -> Iterable[Metric]:
        """Called by prometheus_client at each scrape."""
        for family, name, text, read in _REDIS:
            metric = family(name, text, labels=["server"])
            for index, info in enumerate(self.infos):
                with contextlib.suppress(KeyError):  # a managed Redis may hide this field
                    metric.add_metric([str(index)], read(info))
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
        "Memory in use",
        lambda info: info["used_memory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_memory_limit_bytes",
        "maxmemory; 0 means no limit",
        lambda info: info["maxmemory"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_enabled",
        "1 if AOF persistence is enabled",
        lambda info: info["aof_enabled"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_aof_ok",
        "1 if the last AOF write and the last AOF rewrite succeeded",
        lambda info: info["aof_last_write_status"] == info["aof_last_bgrewrite_status"] == "ok",
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_clients",
        "Open client connections",
        lambda info: info["connected_clients"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_uptime_seconds",
        "Uptime",
        lambda info: info["uptime_in_seconds"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_commands_total",
        "Commands executed, including those called by scripts",
        lambda info: info["total_commands_processed"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_cpu_seconds_total",
        "CPU time, user and system; all commands run on one core",
        lambda info: info["used_cpu_user"] + info["used_cpu_sys"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_rejected_connections_total",
        "Connections refused because maxclients was reached",
        lambda info: info["rejected_connections"],
    ),
    (
        CounterMetricFamily,
        "flotilla_redis_evicted_keys_total",
        "Keys evicted because memory was full, which may be jobs",
        lambda info: info["evicted_keys"],
    ),
    (
        GaugeMetricFamily,
        "flotilla_redis_evicts",
        "1 if maxmemory-policy evicts keys when memory is full",
        lambda info: bool(eviction.problem(info)),
    ),
)


def _add_build_info(registry: CollectorRegistry) -> None:
    build = Gauge(
        "flotilla_build_info", "Always 1; the label has the version", ["version"], registry=registry
    )
    build.labels(version("flotilla")).set(1)


def _refusals() -> set[str]:
    """The codes that `flotilla_requests_refused_total` can have: of all errors but a job's own."""
    kinds, codes = [errors.FlotillaError], set()
    for kind in kinds:
        kinds += kind.__subclasses__()
        if not issubclass(kind, errors.JobFailed):
            codes.add(kind.code or kind.type)
    return codes


def _silent_subscriptions(registry: CollectorRegistry) -> Counter:
    return Counter(
        "flotilla_silent_subscriptions_total",
        "Subscriptions given up and made anew because nothing arrived on them any more",
        registry=registry,
    )


def _malformed(registry: CollectorRegistry, *kinds: str) -> Counter:
    counter = Counter(
        "flotilla_malformed_values_total",
        "Values in Redis and messages that could not be read and were skipped, each time",
        ["kind"],
        registry=registry,
    )
    for kind in kinds:
        counter.labels(kind)
    return counter


class ReaperMetrics:
    """What the reaper of this process did. Every gateway and worker runs one."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.reaped = Counter(
            "flotilla_reaped_jobs_total",
            "Jobs taken from silent workers, past their deadline or without a client, by new state",
            ["state"],
            registry=registry,
        )
        for state in (JobState.QUEUED, JobState.FAILED, JobState.EXPIRED, JobState.CANCELLED):
            self.reaped.labels(state)


class LostWorkerMetrics:
    """What the detector of this process did. Every gateway and the maintenance process run one."""

    def __init__(self, registry: CollectorRegistry, reaper: ReaperMetrics) -> None:
        self.reaped = reaper.reaped
        self.workers = Counter(
            "flotilla_lost_workers_total",
            "Workers whose jobs this process took: their connection was gone, or they were silent",
            registry=registry,
        )
        self.false_alarms = Counter(
            "flotilla_false_alarms_total",
            "Workers whose jobs this process took because they were silent, and that went on later",
            registry=registry,
        )


class LostGatewayMetrics:
    """The gateways that this process has found to be gone."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.gateways = Counter(
            "flotilla_lost_gateways_total",
            "Gateways that were gone, and whose jobs this process unwatched for them",
            registry=registry,
        )


class GatewayMetrics:
    """A gateway's metrics: its own counts, and what it reads from Redis at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _add_build_info(registry)
        self.reaper = ReaperMetrics(registry)
        self.lost_workers = LostWorkerMetrics(registry, self.reaper)
        self.lost_gateways = LostGatewayMetrics(registry)
        self.ready = Gauge(
            "flotilla_gateway_ready",
            "1 if this check of /readyz passes",
            ["check"],
            registry=registry,
        )
        self.background_tasks = Gauge(
            "flotilla_background_task_running",
            "1 while this background task runs; 0: it has ended, restart the process",
            ["task"],
            registry=registry,
        )
        self.silent_subscriptions = _silent_subscriptions(registry)
        self.malformed = _malformed(registry, "worker", "model", "scale", "frame")
        self.redis_writable = Gauge(
            "flotilla_redis_writable",
            "1 if the last test write to this server succeeded",
            ["server"],
            registry=registry,
        )
        self.submitted = FastCounters(
            "flotilla_jobs_submitted_total", "Jobs submitted", ["pool", "lane"]
        )
        registry.register(self.submitted)
        self.refused = Counter(
            "flotilla_requests_refused_total",
            "Requests answered with an error before they became a job",
            ["code"],
            registry=registry,
        )
        for code in _refusals():
            self.refused.labels(code)
        self.wrong_keys = Counter(
            "flotilla_wrong_keys_total",
            "Requests with an unknown API key, by how they were answered",
            ["answer"],
            registry=registry,
        )
        for answer in ("at_once", "delayed", "refused"):
            self.wrong_keys.labels(answer)
        self.connections = Gauge(
            "flotilla_connections", "Open client connections", registry=registry
        )
        self.connections_limit = Gauge(
            "flotilla_connections_limit",
            "Client connections that the file descriptor limit allows",
            registry=registry,
        )
        self.connections_closed = Counter(
            "flotilla_connections_closed_total",
            "Connections closed before an answer, by the limit that was reached",
            ["limit"],
            registry=registry,
        )
        for limit in ("time", "write", "address", "descriptors"):
            self.connections_closed.labels(limit)
        self.ttft = FastHistogram(
            "flotilla_ttft_seconds",
            "Time to first token: from a streamed request's arrival to its answer's first bytes",
            _SECONDS,
        )
        registry.register(self.ttft)
        self.told_wait = FastHistogram(
            "flotilla_told_wait_ratio",
            "How long a streamed call waited for its first output / what its client was told first",
            (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0),
        )
        registry.register(self.told_wait)
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
            "Time between two chunks of one stream, as they reach the gateway",
            _TOKEN_SECONDS,
        )
        registry.register(self.itl)
        self.open_streams = Gauge(
            "flotilla_open_streams",
            "Requests that wait for an answer or are reading one",
            registry=registry,
        )
        self.overview_streams = Gauge(
            "flotilla_overview_streams", "Open streams of the overview", registry=registry
        )
        self.gaps = Counter(
            "flotilla_stream_gaps_total",
            "Times a reader fell back to the job log because pub/sub lost a frame",
            registry=registry,
        )
        self.cancelled_by_disconnect = Counter(
            "flotilla_disconnects_total",
            "Clients that disconnected before the end of their answer",
            registry=registry,
        )
        self.resumed = Counter(
            "flotilla_answers_resumed_total",
            "Answers taken up again by GET /jobs/{id}/stream",
            registry=registry,
        )
        self.replayed = Counter(
            "flotilla_idempotent_replays_total",
            "Requests that joined the job of an earlier one with the same Idempotency-Key",
            registry=registry,
        )
        lane = ["pool", "lane"]
        self.waiting = Gauge("flotilla_queue_depth", "Queued jobs", lane, registry=registry)
        self.oldest = Gauge(
            "flotilla_queue_oldest_age_seconds",
            "Age of the oldest queued job",
            lane,
            registry=registry,
        )
        self.jobs = Gauge(
            "flotilla_jobs",
            "Jobs that have not ended",
            ["pool", "state"],
            registry=registry,
        )
        self.workers = Gauge("flotilla_workers", "Workers", ["pool", "state"], registry=registry)
        self.wanted = Gauge(
            "flotilla_autoscale_wanted_workers",
            "Workers the autoscaler wants",
            ["pool"],
            registry=registry,
        )
        self.bounds = Gauge(
            "flotilla_autoscale_limit_workers",
            "Least and most workers the autoscaler may want",
            ["pool", "bound"],
            registry=registry,
        )
        self.expected_wait = Gauge(
            "flotilla_autoscale_wait_seconds",
            "Expected wait of a job submitted now, including worker start-up; absent if unknown",
            ["pool"],
            registry=registry,
        )
        self.decision_age = Gauge(
            "flotilla_autoscale_decision_age_seconds",
            "Time since the autoscaler's last decision",
            ["pool"],
            registry=registry,
        )
        self.depth_limit = Gauge(
            "flotilla_queue_depth_limit",
            "Most jobs that may be queued in one lane of a pool",
            ["pool"],
            registry=registry,
        )
        self.dead_letters = Gauge(
            "flotilla_dead_letters",
            "Jobs out of attempts, and unreadable data set aside; about 1,000 per shard are kept",
            registry=registry,
        )
        self.dead_letters_written = Gauge(
            "flotilla_dead_letters_written",
            "Dead letters ever written, by what was set aside (job, attempts, log, key, ...)",
            ["what"],
            registry=registry,
        )
        self.dead_letters_handled = Counter(
            "flotilla_dead_letters_handled_total",
            "Dead letters that an operator replayed or dropped",
            ["action"],
            registry=registry,
        )
        for action in ("replayed", "dropped"):
            self.dead_letters_handled.labels(action)
        self.operator_calls = Counter(
            "flotilla_operator_calls_total",
            "Operator calls, by action and by what became of them on the pool's workers",
            ["action", "outcome"],
            registry=registry,
        )
        self.maintenance = Gauge(
            "flotilla_maintenance_last_run_timestamp_seconds",
            "Unix time at which a maintenance task last completed, in any process",
            ["task"],
            registry=registry,
        )
        self.redis = RedisReading()
        registry.register(self.redis)


class WorkerMetrics:
    """A worker's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        _add_build_info(registry)
        self.reaper = ReaperMetrics(registry)
        self.silent_subscriptions = _silent_subscriptions(registry)
        self.malformed = _malformed(registry, "control message")
        self.info = Gauge(
            "flotilla_worker_info",
            "Always 1; the labels tell what this process serves, for joins with its other metrics",
            ["worker", "pool", "engine"],
            registry=registry,
        )
        self.finished = FastCounters(
            "flotilla_jobs_finished_total",
            "Jobs this worker ended; `code` is the error of those that failed",
            ["state", "code"],
        )
        registry.register(self.finished)
        self.finished.of(JobState.COMPLETED, "")
        for code in ("rejected", "engine_error"):
            self.finished.of(JobState.FAILED, code)
        self.released = Counter(
            "flotilla_jobs_released_total",
            "Jobs released back to the queue",
            ["reason"],
            registry=registry,
        )
        for reason in (
            "handed_back",
            "handed_over",
            "drained",
            "engine_died",
            "id_taken",
            "run_failed",
            "asleep",
        ):
            self.released.labels(reason)
        self.retried = Counter(
            "flotilla_jobs_retried_total",
            "Jobs leased for a second or later attempt",
            registry=registry,
        )
        self._add_continuations(registry)
        self.adapters = Gauge(
            "flotilla_worker_adapters", "LoRA adapters that the engine holds", registry=registry
        )
        self.suspects = Counter(
            "flotilla_suspects_total",
            "Suspects leased: jobs that run alone as they may have ended two workers or more",
            registry=registry,
        )
        self.queue_wait = FastHistogram(
            "flotilla_queue_wait_seconds", "Time from submit to lease, by Redis' clock", _SECONDS
        )
        self.first_token = FastHistogram(
            "flotilla_worker_first_token_seconds", "Time from lease to first token", _SECONDS
        )
        self.job_seconds = FastHistogram(
            "flotilla_job_duration_seconds", "Time from lease to end", _SECONDS
        )
        for histogram in (self.queue_wait, self.first_token, self.job_seconds):
            registry.register(histogram)
        tokens = FastCounters("flotilla_tokens_total", "Tokens of ended jobs", ["kind"])
        registry.register(tokens)
        self.prompt_tokens = tokens.of("prompt")
        self.completion_tokens = tokens.of("completion")
        self.fenced = Counter(
            "flotilla_fenced_writes_total",
            "Writes refused because this worker had lost the job's lease, by the job's state",
            ["state"],
            registry=registry,
        )
        for state in (*JobState, "gone"):
            self.fenced.labels(state)
        self.slots = Gauge(
            "flotilla_worker_slots",
            "Sequences the engine can run at once, by use",
            ["use"],
            registry=registry,
        )
        self.kv_usage = Gauge(
            "flotilla_worker_kv_usage_ratio", "Share of the KV cache in use", registry=registry
        )
        self.steps = FastCounter("flotilla_engine_steps_total", "Engine steps")
        self.flushes = FastCounter("flotilla_flushes_total", "Script calls that carried output")
        registry.register(self.steps)
        registry.register(self.flushes)
        self.state = Gauge(
            "flotilla_worker_state",
            "1 for the worker's current state",
            ["state"],
            registry=registry,
        )

    def _add_continuations(self, registry: CollectorRegistry) -> None:
        self.continued = Counter(
            "flotilla_jobs_continued_total",
            "Jobs continued behind the tokens of an earlier worker, by the engine's way to do so",
            ["how"],
            registry=registry,
        )
        for how in ("prefill", "replay"):
            self.continued.labels(how)
        self.tokens_taken_over = Counter(
            "flotilla_tokens_taken_over_total",
            "Tokens of earlier workers in jobs that were continued",
            registry=registry,
        )
        self.tokens_decoded_again = Counter(
            "flotilla_tokens_decoded_again_total",
            "Tokens of earlier workers that the engine decoded once more to continue a job",
            registry=registry,
        )
        self.continuations_refused = Counter(
            "flotilla_continuations_refused_total",
            "Jobs that could not be continued, by the reason",
            ["reason"],
            registry=registry,
        )
        for reason in ("engine", "log", "different", "context"):
            self.continuations_refused.labels(reason)

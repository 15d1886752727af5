"""A gateway's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.job import errors
from shared.platform.metrics.families import Families
from shared.platform.metrics.losses import UpkeepMetrics
from shared.platform.metrics.redis import RedisReading

_TOKEN_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 5)


class GatewayMetrics:
    """A gateway's metrics: its own counts, and what it reads from Redis at each scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Families(registry)
        new.build_info()
        self.upkeep = UpkeepMetrics(registry)
        self.ready = new.gauge(
            "flotilla_gateway_ready", "1 if this check of /readyz passes", "check"
        )
        self.silent_subscriptions = new.silent_subscriptions()
        self.malformed = new.malformed("worker", "model", "scale", "frame")
        self.redis = RedisReading()
        registry.register(self.redis)
        self._add_requests(new)
        self._add_connections(new)
        self._add_streams(new)
        self._add_queues(new)
        self._add_autoscaler(new)
        self._add_operators(new)
        self._add_maintenance(new)

    def _add_requests(self, new: Families) -> None:
        self.submitted = new.fast_counters(
            "flotilla_jobs_submitted_total", "Jobs submitted", "pool", "lane"
        )
        self.refused = new.counter(
            "flotilla_requests_refused_total",
            "Requests answered with an error before they became a job",
            "code",
            values=_refusals(),
        )

    def _add_connections(self, new: Families) -> None:
        self.connections = new.gauge("flotilla_connections", "Open client connections")
        self.connections_closed = new.counter(
            "flotilla_connections_closed_total",
            "Connections closed before an answer, by the limit that was reached",
            "limit",
            values=("time", "write"),
        )

    def _add_streams(self, new: Families) -> None:
        self.ttft = new.histogram(
            "flotilla_ttft_seconds",
            "Time to first token: from a streamed request's arrival to its answer's first bytes",
        )
        self.told_wait = new.histogram(
            "flotilla_told_wait_ratio",
            "How long a streamed call waited for its first output / what its client was told first",
            (0.25, 0.5, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 4.0),
        )
        self.itl = new.histogram(
            "flotilla_inter_token_seconds",
            "Time between two chunks of one stream, as they reach the gateway",
            _TOKEN_SECONDS,
        )
        self.open_streams = new.gauge(
            "flotilla_open_streams", "Requests that wait for an answer or are reading one"
        )
        self.gaps = new.counter(
            "flotilla_stream_gaps_total",
            "Times a reader fell back to the job log because pub/sub lost a frame",
        )
        self.cancelled_by_disconnect = new.counter(
            "flotilla_disconnects_total", "Clients that disconnected before the end of their answer"
        )

    def _add_queues(self, new: Families) -> None:
        self.waiting = new.gauge("flotilla_queue_depth", "Queued jobs", "pool", "lane")
        self.oldest = new.gauge(
            "flotilla_queue_oldest_age_seconds", "Age of the oldest queued job", "pool", "lane"
        )
        self.jobs = new.gauge("flotilla_jobs", "Jobs that have not ended", "pool", "state")
        self.given_up = new.gauge(
            "flotilla_jobs_given_up", "Jobs that ever ended with too_many_attempts"
        )
        self.workers = new.gauge("flotilla_workers", "Workers", "pool", "state")

    def _add_autoscaler(self, new: Families) -> None:
        self.wanted = new.gauge(
            "flotilla_autoscale_wanted_workers", "Workers the autoscaler wants", "pool"
        )

    def _add_operators(self, new: Families) -> None:
        self.operator_calls = new.counter(
            "flotilla_operator_calls_total",
            "Operator calls, by action and by what became of them on the pool's workers",
            "action",
            "outcome",
        )

    def _add_maintenance(self, new: Families) -> None:
        self.batches = new.gauge("flotilla_open_batches", "Batches that have not ended", "status")
        self.webhook_events = new.gauge(
            "flotilla_webhook_events",
            "Jobs and batches whose end was not read for webhooks yet",
        )
        self.webhook_events_age = new.gauge(
            "flotilla_webhook_events_oldest_age_seconds", "Age of the oldest of these; 0: none"
        )
        self.webhook_endpoints = new.gauge(
            "flotilla_webhook_endpoints_behind",
            "Webhook endpoints with events on their way",
        )
        self.webhook_overdue = new.gauge(
            "flotilla_webhook_overdue_seconds",
            "How long the first due delivery has been so; a receiver that hangs has its wait",
        )
        self.webhook_outcomes = new.gauge(
            "flotilla_webhook_deliveries",
            "Deliveries ever: delivered, failed, retried (a try of these), dropped (too many)",
            "outcome",
        )
        self.usage_entries = new.gauge(
            "flotilla_usage_entries",
            "Jobs ever, by whether their use is in the sums: added, waiting, dropped (too many)",
            "outcome",
        )
        self.usage_age = new.gauge(
            "flotilla_usage_oldest_age_seconds", "Age of the oldest that waits; 0: none"
        )
        self.maintenance = new.gauge(
            "flotilla_maintenance_last_run_timestamp_seconds",
            "Unix time at which a maintenance task last completed, in any process",
            "task",
        )


def _refusals() -> set[str]:
    """The codes that `flotilla_requests_refused_total` can have: of all errors but a job's own."""
    kinds, codes = [errors.FlotillaError], set()
    for kind in kinds:
        kinds += kind.__subclasses__()
        if not issubclass(kind, errors.JobFailed):
            codes.add(kind.code or kind.type)
    return codes

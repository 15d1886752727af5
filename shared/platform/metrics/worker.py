"""A worker's metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from shared.job.rules import DEPTHS
from shared.job.states import JobState
from shared.platform.metrics.families import Families


class WorkerMetrics:
    """A worker's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        new = Families(registry)
        new.build_info()
        self.silent_subscriptions = new.silent_subscriptions()
        self.malformed = new.malformed("control message")
        self.info = new.gauge(
            "flotilla_worker_info",
            "Always 1; the labels tell what this process serves, for joins with its other metrics",
            "worker",
            "pool",
            "engine",
        )
        self._add_jobs(new)
        self._add_continuations(new)
        self._add_engine(new)

    def _add_jobs(self, new: Families) -> None:
        self.finished = new.fast_counters(
            "flotilla_jobs_finished_total",
            "Jobs this worker ended; `code` is the error of those that failed",
            "state",
            "code",
        )
        self.finished.of(JobState.COMPLETED, "")
        for code in ("rejected", "engine_error"):
            self.finished.of(JobState.FAILED, code)
        self.retried = new.counter(
            "flotilla_jobs_retried_total", "Jobs leased for a second or later attempt"
        )
        self.adapters = new.gauge("flotilla_worker_adapters", "LoRA adapters that the engine holds")
        self.queue_wait = new.histogram(
            "flotilla_queue_wait_seconds", "Time from submit to lease, by Redis' clock"
        )
        self.placed = new.counter(
            "flotilla_placed_jobs_total",
            "Jobs leased with a prompt of 4 KiB or more, by how many leading blocks of 2 KiB of it "
            "their worker had run lately",
            "known_blocks",
            values=("0", *map(str, DEPTHS)),
        )
        self.job_seconds = new.histogram("flotilla_job_duration_seconds", "Time from lease to end")
        tokens = new.fast_counters("flotilla_tokens_total", "Tokens of ended jobs", "kind")
        self.prompt_tokens = tokens.of("prompt")
        self.completion_tokens = tokens.of("completion")

    def _add_engine(self, new: Families) -> None:
        self.fenced = new.counter(
            "flotilla_fenced_writes_total",
            "Writes refused because this worker had lost the job's lease, by the job's state",
            "state",
            values=(*JobState, "gone"),
        )
        self.slots = new.gauge(
            "flotilla_worker_slots", "Sequences the engine can run at once, by use", "use"
        )
        self.kv_usage = new.gauge("flotilla_worker_kv_usage_ratio", "Share of the KV cache in use")
        self.steps = new.fast_counter("flotilla_engine_steps_total", "Engine steps")

    def _add_continuations(self, new: Families) -> None:
        self.continued = new.counter(
            "flotilla_jobs_continued_total",
            "Jobs continued behind the tokens of an earlier worker, by the engine's way to do so",
            "how",
            values=("prefill", "replay"),
        )
        self.tokens_taken_over = new.counter(
            "flotilla_tokens_taken_over_total",
            "Tokens of earlier workers in jobs that were continued",
        )
        self.tokens_decoded_again = new.counter(
            "flotilla_tokens_decoded_again_total",
            "Tokens of earlier workers that the engine decoded once more to continue a job",
        )
        self.continuations_refused = new.counter(
            "flotilla_continuations_refused_total",
            "Jobs that could not be continued, by the reason",
            "reason",
            values=("engine", "log", "different", "context"),
        )

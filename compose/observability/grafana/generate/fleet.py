"""The dashboard of queues, workers, the autoscaler and Redis."""

from __future__ import annotations

from dashboard import Dashboard
from panel import graph, stat, table
from queries import OF_POOL, POOL, POOLS, RATE

FLEET = Dashboard(
    "flotilla-fleet",
    "Flotilla: queue and fleet",
    "Queues, workers, the autoscaler and Redis. Every gateway reports the "
    "same of the fleet, so these are maxima over gateways.",
    [
        (
            "",
            [
                stat(
                    "Waiting",
                    "Jobs in the queue. Many are no problem while the oldest is young.",
                    "short",
                    f"sum(max by (pool, lane) (flotilla_queue_depth{POOL}))",
                ),
                stat(
                    "Running",
                    "Jobs that workers have leased.",
                    "short",
                    'sum(max by (pool) (flotilla_jobs{pool=~"$pool", state="in_progress"}))',
                ),
                stat(
                    "Workers that serve",
                    "Ready or busy. 0 with jobs waiting: FlotillaNoWorker in the runbooks.",
                    "short",
                    "sum(max by (pool, state) "
                    '(flotilla_workers{pool=~"$pool", state=~"ready|busy"})) or vector(0)',
                ),
                stat(
                    "Slots busy",
                    "Share of the sequences that the engines may run. Near 100 % with a young "
                    "oldest wait is a fleet well used.",
                    "percentunit",
                    f'sum(flotilla_worker_slots{{use="busy"}} {OF_POOL})'
                    f" / sum(flotilla_worker_slots {OF_POOL})",
                    warn=0.9,
                ),
                stat(
                    "Dead letters",
                    "Jobs given up because every worker that tried them was lost, and data that "
                    "could not be read. See FlotillaDeadLetters and FlotillaUnreadableData in the "
                    "runbooks.",
                    "short",
                    "max(flotilla_dead_letters)",
                    warn=1,
                ),
                stat(
                    "Redis full",
                    "Share of maxmemory; nothing where there is no limit. When it is full the "
                    "fleet stands still.",
                    "percentunit",
                    "max(flotilla_redis_memory_used_bytes"
                    " / (flotilla_redis_memory_limit_bytes > 0))",
                    warn=0.6,
                    bad=0.8,
                ),
            ],
        ),
        (
            "Queue",
            [
                graph(
                    "Waiting by lane",
                    "Compare with the oldest wait: deep and young is a burst that drains, deep and "
                    "old is too few workers. The gateways refuse at the limit "
                    "(FLOTILLA_MAX_QUEUE_DEPTH).",
                    "short",
                    (
                        'max by (pool, lane) (flotilla_queue_depth{pool=~"$pool", lane!="retry"})',
                        "{{pool}} {{lane}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Oldest wait by lane",
                    "Climbing a second a second: no worker claims from that lane. Flex may wait, "
                    "the others should not.",
                    "s",
                    (
                        "max by (pool, lane) "
                        '(flotilla_queue_oldest_age_seconds{pool=~"$pool", lane!="retry"})',
                        "{{pool}} {{lane}}",
                    ),
                    bad=60,
                ),
                graph(
                    "Jobs by state",
                    "in_progress flat at the number of slots: the fleet is full. Falling with "
                    "queued rising: workers have gone.",
                    "short",
                    (f"max by (pool, state) (flotilla_jobs{POOL})", "{{pool}} {{state}}"),
                ),
                graph(
                    "Full lanes",
                    "Share of a lane's limit. At 100 % requests get 503 queue_full.",
                    "percentunit",
                    (
                        f"max by (pool, lane) (flotilla_queue_depth{POOL})"
                        " / on (pool) group_left () max by (pool) (flotilla_queue_depth_limit)",
                        "{{pool}} {{lane}}",
                    ),
                    bad=0.8,
                ),
            ],
        ),
        (
            "Workers and autoscaler",
            [
                graph(
                    "Workers by state",
                    "As they announce themselves. starting for longer than a model takes to load, "
                    "or starting again and again: FlotillaWorkerFlaps in the runbooks.",
                    "short",
                    (f"max by (pool, state) (flotilla_workers{POOL})", "{{pool}} {{state}}"),
                    stacked=True,
                ),
                graph(
                    "Wanted and actual",
                    "Wanted above actual for long: nothing starts the workers. Actual above wanted "
                    "for long: nothing drains them. Wanted at most, and the expected wait high: "
                    "raise the maximum. Why: flotilla scale explain.",
                    "short",
                    (f"max by (pool) (flotilla_autoscale_wanted_workers{POOL})", "{{pool}} wanted"),
                    (
                        "sum by (pool) (max by (pool, state) "
                        '(flotilla_workers{pool=~"$pool", state=~"ready|busy|starting"}))',
                        "{{pool}} actual",
                    ),
                    (
                        f"max by (pool, bound) (flotilla_autoscale_limit_workers{POOL})",
                        "{{pool}} {{bound}}",
                    ),
                ),
                graph(
                    "Expected wait of a new job",
                    "What the autoscaler expects, start of workers included. None where it does "
                    "not know yet. High while wanted is below most: workers are on their way.",
                    "s",
                    (f"max by (pool) (flotilla_autoscale_wait_seconds{POOL})", "{{pool}}"),
                ),
                graph(
                    "Slots",
                    "Sequences that the engines may run. Free ones with jobs waiting: the KV cache "
                    "is full, or workers drain.",
                    "short",
                    (f"sum by (use) (flotilla_worker_slots {OF_POOL})", "{{use}}"),
                    stacked=True,
                ),
                table(
                    "Each worker",
                    "One with busy slots and a KV cache near 100 % is limited by memory. One that "
                    "is idle while jobs of its pool wait claims nothing: its /readyz says why.",
                    {
                        "busy slots": "sum by (instance, worker, pool, engine) "
                        '(flotilla_worker_slots{use="busy"} * on (job, instance) '
                        f"group_left (worker, pool, engine) flotilla_worker_info{POOL})",
                        "free slots": "sum by (instance, worker, pool, engine) "
                        '(flotilla_worker_slots{use="free"} * on (job, instance) '
                        f"group_left (worker, pool, engine) flotilla_worker_info{POOL})",
                        "KV cache in use": "sum by (instance, worker, pool, engine) "
                        "(flotilla_worker_kv_usage_ratio * on (job, instance) "
                        f"group_left (worker, pool, engine) flotilla_worker_info{POOL})",
                        "hours up": "sum by (instance, worker, pool, engine) "
                        "((time() - process_start_time_seconds) / 3600 * on (job, instance) "
                        f"group_left (worker, pool, engine) flotilla_worker_info{POOL})",
                    },
                    width=24,
                ),
            ],
        ),
        (
            "Problems",
            [
                graph(
                    "Jobs that changed workers",
                    "Retried: leases of jobs whose earlier worker was lost. Continued: behind the "
                    "tokens of that worker. Not continued: they began anew or failed, see the "
                    "worker's log. Taken back: by the reaper, from silent workers. Handed back: "
                    "by a worker that drains or whose engine died, as far as it lived to be asked.",
                    "short",
                    (f"sum(increase(flotilla_jobs_retried_total{RATE}) {OF_POOL})", "retried"),
                    (
                        f"sum by (how) (increase(flotilla_jobs_continued_total{RATE}) {OF_POOL})",
                        "continued, {{how}}",
                    ),
                    (
                        "sum by (reason) (increase("
                        f"flotilla_continuations_refused_total{RATE}) {OF_POOL})",
                        "not continued, {{reason}}",
                    ),
                    (
                        "sum(increase("
                        f'flotilla_reaped_jobs_total{{state=~"queued|failed"}}{RATE}))',
                        "taken back",
                    ),
                    (
                        f"sum by (reason) (increase(flotilla_jobs_released_total{RATE}) {OF_POOL})",
                        "handed back, {{reason}}",
                    ),
                ),
                graph(
                    "Refused writes",
                    "By the state that the job was in. cancelled and expired are usual. queued and "
                    "in_progress: the worker had lost its lease without being lost; see "
                    "FlotillaFencedWrites in the runbooks.",
                    "short",
                    (
                        f"sum by (state) (increase(flotilla_fenced_writes_total{RATE}) {OF_POOL})",
                        "{{state}}",
                    ),
                ),
                graph(
                    "Frames that pub/sub lost",
                    "Times that a stream had to read Redis. A few at a reconnect are usual; a "
                    "steady rate is a gateway or a Redis without CPU to spare.",
                    "short",
                    (
                        f"sum by (instance) (rate(flotilla_stream_gaps_total{RATE}))",
                        "{{instance}}, per second",
                    ),
                ),
                graph(
                    "Autoscaler and maintenance, time since the last round",
                    "Rises steadily: the maintenance process is gone or stuck. Requests don't need "
                    "it; the number of workers stays as it is.",
                    "s",
                    (
                        f"max by (pool) (flotilla_autoscale_decision_age_seconds{POOL})",
                        "autoscaler, {{pool}}",
                    ),
                    (
                        "time() - max by (task) (flotilla_maintenance_last_run_timestamp_seconds)",
                        "{{task}}",
                    ),
                ),
                graph(
                    "Dead letters and malformed values",
                    "attempts: jobs given up. Others: data in Redis that could not be read and was "
                    "set aside, and values that were skipped each time they were read. See "
                    "FlotillaUnreadableData and FlotillaMalformedValues in the runbooks.",
                    "short",
                    ("max by (what) (flotilla_dead_letters_written)", "{{what}}, ever"),
                    (
                        f"sum by (job, kind) (increase(flotilla_malformed_values_total{RATE}))",
                        "{{job}}, malformed {{kind}}",
                    ),
                ),
                graph(
                    "Background tasks that have ended",
                    "Of each gateway. 1: restart that gateway. See FlotillaBackgroundTaskEnded in "
                    "the runbooks.",
                    "short",
                    (
                        "1 - min by (instance, task) (flotilla_background_task_running)",
                        "{{instance}}, {{task}}",
                    ),
                    bad=1,
                ),
            ],
        ),
        (
            "Redis and processes",
            [
                graph(
                    "Redis memory",
                    "Results are kept for FLOTILLA_RESULT_TTL_S: shorten it if memory grows with "
                    "traffic. The limit is 0 where there is none.",
                    "bytes",
                    ("max(flotilla_redis_memory_used_bytes)", "used"),
                    ("max(flotilla_redis_memory_limit_bytes)", "limit"),
                ),
                graph(
                    "Redis CPU and commands",
                    "Commands share one core: near 1 it is what limits the fleet. Then more shards "
                    "on a cluster, or FLOTILLA_STREAM_PACE_S.",
                    "short",
                    (f"max(rate(flotilla_redis_cpu_seconds_total{RATE}))", "cores"),
                    (f"max(rate(flotilla_redis_commands_total{RATE})) / 1000", "1000 commands/s"),
                ),
                graph(
                    "Redis connections",
                    "A steady climb is a leak. Refused ones: raise its maxclients.",
                    "short",
                    ("max(flotilla_redis_clients)", "connections"),
                    (
                        f"max(increase(flotilla_redis_rejected_connections_total{RATE}))",
                        "refused",
                    ),
                ),
                graph(
                    "CPU of gateways and workers",
                    "A gateway near 1 core delays every stream through it: add gateways.",
                    "short",
                    (
                        "rate(process_cpu_seconds_total"
                        f'{{job=~"flotilla-gateway|flotilla-worker"}}{RATE})',
                        "{{job}} {{instance}}",
                    ),
                ),
                graph(
                    "Memory of gateways and workers",
                    "The process alone: an engine of vLLM has a process of its own. A steady climb "
                    "is a leak.",
                    "bytes",
                    (
                        'process_resident_memory_bytes{job=~"flotilla-gateway|flotilla-worker"}',
                        "{{job}} {{instance}}",
                    ),
                ),
                table(
                    "Running versions",
                    "More than one outside of a rolling update: a process was not updated.",
                    {"processes": "count by (job, version) (flotilla_build_info)"},
                ),
            ],
        ),
    ],
    [POOLS],
)

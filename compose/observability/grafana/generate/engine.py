"""vLLM's own metrics beside ours."""

from __future__ import annotations

from dashboard import Dashboard
from panel import graph, heatmap
from queries import INSTANCES, POOLS, RATE, WORKER

ENGINE = Dashboard(
    "flotilla-engine",
    "Flotilla: engine",
    "vLLM's own metrics beside ours, for each worker. Panels of vllm: metrics are empty for the "
    "simulated engine.",
    [
        (
            "Batch",
            [
                graph(
                    "Sequences in the engine",
                    "Running is the batch. Waiting inside vLLM should stay near 0: a worker claims "
                    "what it can run at once. Waiting for long: the KV cache is too small for that "
                    "many slots; lower --max-num-seqs.",
                    "short",
                    (f"vllm:num_requests_running{WORKER}", "{{instance}} running"),
                    (f"vllm:num_requests_waiting{WORKER}", "{{instance}} waiting in vLLM"),
                    (
                        'flotilla_worker_slots{use="busy", instance=~"$instance"}',
                        "{{instance}} in hand",
                    ),
                ),
                graph(
                    "KV cache in use",
                    "Above FLOTILLA_KV_HIGH_WATERMARK (95 %) a worker claims nothing. Near 100 % "
                    "with preemptions: work is done twice; lower --max-num-seqs or give vLLM more "
                    "memory.",
                    "percentunit",
                    (f"vllm:kv_cache_usage_perc{WORKER}", "{{instance}} vLLM"),
                    (f"flotilla_worker_kv_usage_ratio{WORKER}", "{{instance}}"),
                    bad=0.95,
                    most=1,
                ),
                graph(
                    "Tokens",
                    "What the engine computes. Generation falls when long prompts are read in: "
                    "that is the trade of chunked prefill.",
                    "short",
                    (
                        f"rate(vllm:prompt_tokens_total{WORKER}{RATE})",
                        "{{instance}} prompt, per second",
                    ),
                    (
                        f"rate(vllm:generation_tokens_total{WORKER}{RATE})",
                        "{{instance}} generated, per second",
                    ),
                ),
                graph(
                    "Steps",
                    "Engine steps a second. 0 with sequences in hand: the engine is stuck; see "
                    "FlotillaEngineStalled in the runbooks.",
                    "short",
                    (f"rate(flotilla_engine_steps_total{WORKER}{RATE})", "{{instance}}"),
                ),
                graph(
                    "Prefix cache hits",
                    "Share of prompt tokens that need no computing. A fall after a roll-out of "
                    "prompts: their beginnings have become different.",
                    "percentunit",
                    (
                        f"rate(vllm:prefix_cache_hits_total{WORKER}{RATE})"
                        f" / rate(vllm:prefix_cache_queries_total{WORKER}{RATE})",
                        "{{instance}}",
                    ),
                    most=1,
                ),
                graph(
                    "Preemptions",
                    "Sequences that lost their place in the KV cache, and are computed anew. More "
                    "than now and then: lower --max-num-seqs or FLOTILLA_KV_HIGH_WATERMARK.",
                    "short",
                    (f"increase(vllm:num_preemptions_total{WORKER}{RATE})", "{{instance}}"),
                ),
            ],
        ),
        (
            "Time",
            [
                graph(
                    "First token, p99",
                    "In vLLM, and from the lease as Flotilla sees it. A gap between the two is the "
                    "worker's own CPU.",
                    "s",
                    (
                        "histogram_quantile(0.99, sum by (le, instance) "
                        f"(rate(vllm:time_to_first_token_seconds_bucket{WORKER}{RATE})))",
                        "{{instance}} vLLM",
                    ),
                    (
                        "histogram_quantile(0.99, sum by (le, instance) "
                        f"(rate(flotilla_worker_first_token_seconds_bucket{WORKER}{RATE})))",
                        "{{instance}} from the lease",
                    ),
                ),
                graph(
                    "Between tokens, p50 and p99",
                    "In vLLM. It grows with the batch: fewer slots make it shorter and the queue "
                    "longer.",
                    "s",
                    *(
                        (
                            f"histogram_quantile(0.{share}, sum by (le, instance) "
                            f"(rate(vllm:inter_token_latency_seconds_bucket{WORKER}{RATE})))",
                            f"{{{{instance}}}} p{share}",
                        )
                        for share in (50, 99)
                    ),
                ),
                graph(
                    "Job on the worker, p50 and p99",
                    "From the lease to the end. It is what the autoscaler counts with.",
                    "s",
                    *(
                        (
                            f"histogram_quantile(0.{share}, sum by (le, instance) "
                            f"(rate(flotilla_job_duration_seconds_bucket{WORKER}{RATE})))",
                            f"{{{{instance}}}} p{share}",
                        )
                        for share in (50, 99)
                    ),
                ),
                graph(
                    "Prefill and decode, mean",
                    "Where the time goes. Long prefill: long prompts, or a cold prefix cache. Long "
                    "decode: long answers, or a large batch.",
                    "s",
                    *(
                        (
                            f"rate(vllm:request_{part}_time_seconds_sum{WORKER}{RATE})"
                            f" / rate(vllm:request_{part}_time_seconds_count{WORKER}{RATE})",
                            f"{{{{instance}}}} {part}",
                        )
                        for part in ("prefill", "decode")
                    ),
                ),
            ],
        ),
        (
            "Work",
            [
                graph(
                    "Calls to Redis per step",
                    "What a step makes leaves in one call, so this is near 1: a little above where "
                    "answers end between steps, below where steps have nothing to say. Far above: "
                    "Redis is slow and calls are repeated, or answers are very long.",
                    "short",
                    (
                        f"rate(flotilla_flushes_total{WORKER}{RATE})"
                        f" / rate(flotilla_engine_steps_total{WORKER}{RATE})",
                        "{{instance}}",
                    ),
                ),
                graph(
                    "How requests end in vLLM",
                    "length: answers hit max_tokens. abort: clients left, or leases were lost. "
                    "error: see the worker's log.",
                    "reqps",
                    (
                        "sum by (finished_reason) "
                        f"(rate(vllm:request_success_total{WORKER}{RATE}))",
                        "{{finished_reason}}",
                    ),
                    stacked=True,
                ),
                heatmap(
                    "Prompt tokens",
                    "Length of prompts. A new band of long ones explains slow first tokens.",
                    "short",
                    f"sum by (le) (increase(vllm:request_prompt_tokens_bucket{WORKER}{RATE}))",
                ),
                heatmap(
                    "Generated tokens",
                    "Length of answers. Longer ones hold their slots longer: the same requests a "
                    "second need more workers.",
                    "short",
                    f"sum by (le) (increase(vllm:request_generation_tokens_bucket{WORKER}{RATE}))",
                ),
                heatmap(
                    "Tokens per step",
                    "How full the engine's steps are. Most at the bottom: batches are small, and a "
                    "smaller fleet would do.",
                    "short",
                    f"sum by (le) (increase(vllm:iteration_tokens_total_bucket{WORKER}{RATE}))",
                    width=24,
                ),
            ],
        ),
    ],
    [POOLS, INSTANCES],
)

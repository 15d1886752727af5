"""What users feel: slow, failing, for whom, since when."""

from __future__ import annotations

from dashboard import Dashboard
from panel import graph, heatmap, stat
from queries import OF_POOL, POOL, POOLS, RATE, quantiles

FAILED = (
    f'sum(rate(flotilla_jobs_finished_total{{state="failed", code!="rejected"}}{RATE}) {OF_POOL})'
)
LATE = (
    f'1 - sum(rate(flotilla_ttft_seconds_bucket{{le="2.5"}}{RATE}))'
    f" / sum(rate(flotilla_ttft_seconds_count{RATE}))"
)
ALL_POOLS = " A gateway measures this over all pools together."

USERS = Dashboard(
    "flotilla-users",
    "Flotilla: what users feel",
    "Is it slow, is it failing, for whom, and since when? Start here.",
    [
        (
            "",
            [
                stat(
                    "Gateways ready",
                    "Gateways that pass every check of /readyz. 0: no request is answered; see "
                    "FlotillaRedisNotWritable and FlotillaGatewayDown in the runbooks.",
                    "short",
                    "count(min by (job, instance) (flotilla_gateway_ready) == 1) or vector(0)",
                ),
                stat(
                    "First token, p99",
                    "One stream in a hundred waits longer for its first token. High with an old "
                    "oldest wait: too few workers. High without: see the engine dashboard."
                    + ALL_POOLS,
                    "s",
                    quantiles("flotilla_ttft_seconds", shares="99")[0][0],
                    warn=2.5,
                    bad=10,
                ),
                stat(
                    "Oldest wait",
                    "The job that has waited longest, flex aside. Old and rising: see wanted and "
                    "actual workers on the fleet dashboard.",
                    "s",
                    'max(flotilla_queue_oldest_age_seconds{pool=~"$pool", lane!="flex"})',
                    warn=10,
                    bad=60,
                ),
                stat(
                    "Failed jobs",
                    "Share of the jobs that ended in failure on a worker, those aside that were "
                    "refused as wrong. GET /jobs?state=failed lists them with their error.",
                    "percentunit",
                    f"{FAILED} / sum(rate(flotilla_jobs_finished_total{RATE}) {OF_POOL})",
                    warn=0.01,
                    bad=0.05,
                ),
                stat(
                    "Refused",
                    "Requests a second that got an error instead of a job. By code below."
                    + ALL_POOLS,
                    "reqps",
                    f"sum(rate(flotilla_requests_refused_total{RATE}))",
                ),
                stat(
                    "Open streams",
                    "Clients that wait for an answer or read one." + ALL_POOLS,
                    "short",
                    "sum(flotilla_open_streams)",
                ),
            ],
        ),
        (
            "Streams",
            [
                graph(
                    "First token",
                    "From a streamed request's arrival to its first bytes, waiting included. The "
                    "line is the promise, 2.5 s. If only p99 rises, some lane or pool waits; if "
                    "p50 rises, all do." + ALL_POOLS,
                    "s",
                    *quantiles("flotilla_ttft_seconds"),
                    warn=2.5,
                ),
                heatmap(
                    "First token, all streams",
                    "Two bands: some streams wait and some do not, so look which pool or lane. One "
                    "band that climbs: the fleet is too small." + ALL_POOLS,
                    "s",
                    f"sum by (le) (increase(flotilla_ttft_seconds_bucket{RATE}))",
                ),
                graph(
                    "Between tokens",
                    "Between two chunks of one stream as they reach the gateway. It rises with the "
                    "engine's batch; rising here but not on the engine dashboard, it is Redis or "
                    "the gateway's CPU." + ALL_POOLS,
                    "s",
                    *quantiles("flotilla_inter_token_seconds"),
                ),
                graph(
                    "Whole answer",
                    "From a request's arrival to the end of its answer, streamed (true) or not. "
                    "Longer answers and longer waits both show here: compare with the two graphs "
                    "above." + ALL_POOLS,
                    "s",
                    *quantiles("flotilla_answer_seconds", by="stream", shares="50 99"),
                ),
                graph(
                    "Streams that were late",
                    "Share of streams whose first token took longer than 2.5 s. The allowance is "
                    "1 %; the burn alerts are about this." + ALL_POOLS,
                    "percentunit",
                    (LATE, "late"),
                    warn=0.01,
                    bad=0.144,
                ),
                graph(
                    "Open streams, and clients that left",
                    "Clients that left before the end, a second: many at once after a slow spell "
                    "are people or time-outs giving up." + ALL_POOLS,
                    "short",
                    ("sum(flotilla_open_streams)", "open"),
                    (f"sum(rate(flotilla_disconnects_total{RATE}))", "left, per second"),
                ),
            ],
        ),
        (
            "Waiting, refusals, ends",
            [
                graph(
                    "Wait in the queue",
                    "From submit to the lease, of the jobs that got one. Jobs that still wait are "
                    "not in it: see the oldest.",
                    "s",
                    *quantiles("flotilla_queue_wait_seconds", of=OF_POOL),
                ),
                graph(
                    "Oldest wait by lane",
                    "The job that has waited longest. It climbs a second a second while no worker "
                    "claims from that lane.",
                    "s",
                    (
                        "max by (pool, lane) "
                        '(flotilla_queue_oldest_age_seconds{pool=~"$pool", lane!="retry"})',
                        "{{pool}} {{lane}}",
                    ),
                    bad=60,
                ),
                graph(
                    "Jobs that come in",
                    "What clients ask of each pool and lane. A step here explains most of what "
                    "happens elsewhere.",
                    "reqps",
                    (
                        f"sum by (pool, lane) (rate(flotilla_jobs_submitted_total{POOL}{RATE}))",
                        "{{pool}} {{lane}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "Requests refused, by code",
                    "queue_full: add workers. redis_unavailable: see Redis on the fleet dashboard. "
                    "model_unavailable: no worker ever registered. The rest is the clients' own: "
                    "tell them." + ALL_POOLS,
                    "reqps",
                    (
                        f"sum by (code) (rate(flotilla_requests_refused_total{RATE})) > 0",
                        "{{code}}",
                    ),
                    stacked=True,
                ),
                graph(
                    "How jobs end",
                    "rejected is the request's own fault, engine_error and lost are ours. What "
                    "reaper ends (lost, expired) is over all pools; cancelled ones are nowhere.",
                    "reqps",
                    (
                        "sum by (state, code) "
                        f"(rate(flotilla_jobs_finished_total{RATE}) {OF_POOL})",
                        "{{state}} {{code}}",
                    ),
                    (
                        f'sum(rate(flotilla_reaped_jobs_total{{state="failed"}}{RATE}))',
                        "failed, its worker was lost",
                    ),
                    (f'sum(rate(flotilla_reaped_jobs_total{{state="expired"}}{RATE}))', "expired"),
                    stacked=True,
                ),
                graph(
                    "Tokens",
                    "Of the jobs that ended. Falling while jobs wait: an engine stands still or "
                    "workers have gone.",
                    "short",
                    (
                        f"sum by (kind) (rate(flotilla_tokens_total{RATE}) {OF_POOL})",
                        "{{kind}}, per second",
                    ),
                ),
            ],
        ),
    ],
    [POOLS],
)

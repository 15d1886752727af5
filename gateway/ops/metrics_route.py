"""Prometheus metrics: what this process counted, and the state of the fleet as Redis has it."""

from __future__ import annotations

import logging
from math import nan

from fastapi import APIRouter
from prometheus_client import generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from starlette.responses import Response

from gateway.core.context import Gateway, GatewayDep
from gateway.ops.readiness import checks
from shared.job.states import JobState
from shared.platform.logs import RareWarning
from shared.platform.metrics.gateway import GatewayMetrics
from shared.platform.tasks import run_together
from shared.store.batch_records import BatchRecords
from shared.store.errors import StoreError
from shared.store.upkeep import MaintenanceRuns
from shared.store.usage import UsageBacklog, UsageRecords
from shared.store.views import depths, given_up
from shared.store.webhooks import OUTCOMES, Backlog, Deliveries

router = APIRouter(tags=["health"])
log = logging.getLogger("flotilla.gateway")
_warn = RareWarning(log)


@router.get("/metrics")
async def metrics(gateway: GatewayDep) -> Response:
    """All metrics in Prometheus' text format."""
    # At the same time, so that a scrape waits for one timeout of Redis, not for each.
    problems, _ = await run_together(
        checks(gateway),
        run_together(_read_fleet(gateway), _read_given_up(gateway), _read_redis(gateway)),
    )
    for check, problem in problems.items():
        gateway.metrics.ready.labels(check).set(not problem)
    return Response(generate_latest(gateway.prometheus), media_type=CONTENT_TYPE_LATEST)


async def _read_fleet(gateway: Gateway) -> None:
    """Set the gauges whose values are in Redis. If Redis does not answer they have no value."""
    m, queue = gateway.metrics, gateway.queue
    try:
        (lanes, runs), (batches, webhooks, ledger) = await run_together(
            run_together(depths(queue), MaintenanceRuns(queue.servers).all()),
            run_together(
                BatchRecords(queue).open_counts(),
                Deliveries(queue).backlog(),
                UsageRecords(queue).backlog(),
            ),
        )
        workers = gateway.fleet.workers
    except StoreError as error:
        _warn("the fleet's metrics could not be read: %s", error)
        lanes, runs, workers = [], {}, []
        batches, webhooks, ledger = {}, None, None
    counted = (m.waiting, m.oldest, m.jobs, m.workers, m.maintenance, m.batches, m.wanted)
    for gauge in counted:
        gauge.clear()
    oldest: dict[tuple[str, str], float] = {}
    for depth in lanes:
        pool = depth.pool  # with the queues of its adapters
        m.waiting.labels(pool, depth.lane).inc(depth.waiting)
        oldest[pool, depth.lane] = max(oldest.get((pool, depth.lane), 0.0), depth.oldest_s)
        m.jobs.labels(pool, JobState.QUEUED).inc(depth.waiting)
        m.jobs.labels(pool, JobState.IN_PROGRESS).inc(depth.in_progress)
    for (pool, lane), seconds in oldest.items():
        m.oldest.labels(pool, lane).set(seconds)
    for worker in workers:
        m.workers.labels(worker.pool, worker.state).inc()
    for status, n_batches in batches.items():
        m.batches.labels(status).set(n_batches)
    for task, done_s in runs.items():
        m.maintenance.labels(task).set(done_s)
    for pool, scale in gateway.fleet.scales.items():
        if not scale.stale(gateway.fleet.now_s()):
            m.wanted.labels(pool).set(scale.wanted)
    _set_webhooks(m, webhooks)
    _set_ledger(m, ledger)


def _set_webhooks(m: GatewayMetrics, backlog: Backlog | None) -> None:
    m.webhook_events.set(backlog.ended if backlog else nan)
    m.webhook_events_age.set(backlog.oldest_s if backlog else nan)
    m.webhook_endpoints.set(backlog.endpoints if backlog else nan)
    m.webhook_overdue.set(backlog.overdue_s if backlog else nan)
    for outcome in OUTCOMES:
        count = backlog.counts.get(outcome, 0) if backlog else nan
        m.webhook_outcomes.labels(outcome).set(count)


def _set_ledger(m: GatewayMetrics, ledger: UsageBacklog | None) -> None:
    m.usage_age.set(ledger.oldest_s if ledger else nan)
    m.usage_entries.labels("added").set(ledger.added if ledger else nan)
    m.usage_entries.labels("waiting").set(ledger.entries if ledger else nan)
    m.usage_entries.labels("dropped").set(ledger.dropped if ledger else nan)


async def _read_given_up(gateway: Gateway) -> None:
    try:
        gateway.metrics.given_up.set(await given_up(gateway.queue))
    except StoreError:  # `_read_fleet` has logged it
        gateway.metrics.given_up.set(nan)


async def _read_redis(gateway: Gateway) -> None:
    gateway.metrics.redis.infos = await gateway.queue.servers.infos()

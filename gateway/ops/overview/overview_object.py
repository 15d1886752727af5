"""The overview as the API shows it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from gateway.ops.autoscaler.scale_object import decision
from gateway.ops.overview.fleet_state import FleetState, PoolState, WorkerView
from gateway.ops.overview.problem import Problem
from gateway.ops.overview.verdict import verdict_object
from shared.job.states import WorkerState

_SIMULATED = "simulated"
_PHASES = {WorkerState.STARTING: "loading the model", WorkerState.DRAINING: "draining"}

LATENCY_SOURCES = {
    "ttft_s": "streamed requests of this gateway",
    "itl_s": "streams of this gateway",
    "queue_wait_s": "all jobs that workers have claimed",
    "e2e_s": "answers of this gateway",
}
"""Where each of the latencies comes from."""

Quantiles = Mapping[str, float | None] | None


class Latency(NamedTuple):
    """Percentiles, by the names of LATENCY_SOURCES."""

    values: Mapping[str, Quantiles]
    since_s: float | None
    """They are of the values since then, Unix seconds; None: since the processes began."""


def overview_object(
    state: FleetState,
    problems: Sequence[Problem],
    recovered: Sequence[dict[str, Any]],
    latency: Latency,
    history: dict[str, Any],
    gateway: Mapping[str, str],
) -> dict[str, Any]:
    """The whole overview. `gateway`: its id and version."""
    engines = sorted({view.info.engine for view in state.workers if view.info.engine})
    redis = state.redis
    return {
        "object": "overview",
        "at": round(state.at_s, 3),
        "gateway": dict(gateway),
        "engines": engines,
        "simulated": any(engine.startswith(_SIMULATED) for engine in engines),
        "verdict": verdict_object(state, problems, recovered),
        "rates": dict(state.rates),
        "pools": [_pool(pool, state.at_s) for pool in state.pools],
        "workers": [_worker(view, state.adapters) for view in state.workers],
        "latency": {
            **{name: _rounded(values) for name, values in latency.values.items()},
            "since": latency.since_s,
            "source": LATENCY_SOURCES,
        },
        "history": history,
        "dead_letters": state.dead_letters,
        "redis": {
            "ok": not redis.error,
            "error": redis.error or None,
            "used_memory": redis.used_memory,
            "max_memory": redis.max_memory,
            "evicts": redis.eviction_problem or None,
        },
    }


def _pool(pool: PoolState, now_s: float) -> dict[str, Any]:
    return {
        "pool": pool.pool,
        "models": list(pool.models),
        "paused": pool.paused,
        "intake_stopped": pool.intake_stopped,
        "waiting": pool.waiting,
        "running": pool.running,
        "slots": pool.slots,
        "busy": pool.busy,
        "workers_ready": pool.workers_ready,
        "workers_starting": pool.workers_starting,
        "oldest_wait_s": round(pool.oldest_s, 1),
        "estimated_wait_s": None if pool.wait_s is None else round(pool.wait_s, 1),
        "wait_reason": pool.wait_reason,
        "lanes": [
            {"lane": lane.lane, "waiting": lane.waiting, "oldest_wait_s": round(lane.oldest_s, 1)}
            for lane in pool.lanes
        ],
        "tenants": [
            {"tenant": each.tenant, "waiting": each.waiting, "running": each.running}
            for each in pool.tenants
        ],
        "scale": None if pool.scale is None else _scale(pool, now_s),
    }


def _scale(pool: PoolState, now_s: float) -> dict[str, Any]:
    assert pool.scale is not None
    return decision(pool.scale, now_s) | {
        "silent": pool.scale_is_stale,
        "least": pool.scale.limits.min,
        "most": pool.scale.limits.max,
        "usual_start_s": pool.scale.seen.start_s,
    }


def _worker(view: WorkerView, adapters: Collection[str]) -> dict[str, Any]:
    info, lost = view.info, view.lost_since_s is not None
    loads = info.state is WorkerState.STARTING and not lost
    rate = view.output_tokens_per_s
    return {
        "id": info.id,
        "pool": info.pool,
        "state": "lost" if lost else info.state,
        "reason": info.failure or info.reason,
        "phase": "" if lost else _PHASES.get(info.state, ""),
        "phase_s": round(view.age_s, 1) if loads else None,
        "engine": info.engine,
        "slots": info.slots,
        "busy": 0 if lost else info.running,
        "kv_use": None if loads or lost else round(info.kv_usage, 3),
        "heartbeat_age_s": None if loads else round(view.age_s, 1),
        "output_tokens_per_s": None if rate is None or lost else round(rate, 1),
        "jobs": [] if lost else list(info.job_ids),
        "adapters": [name for name in info.models if name in adapters],
        "models": list(info.models),
        "lost": lost,
        "lost_since": view.lost_since_s,
        "host": info.host,
        "pid": info.pid,
        "version": info.version,
        "start_s": info.start_s,
    }


def _rounded(values: Quantiles) -> Quantiles:
    if values is None:
        return None
    return {name: None if each is None else round(each, 4) for name, each in values.items()}

"""`flotilla scale explain`: how many workers there are, how many there should be, and why."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from typing import Any

from gateway.autoscaler.scale_object import whole
from gateway.launcher.local_redis import without_password
from shared.fleet.registry import Registry
from shared.fleet.scale_decisions import ScaleStore
from shared.platform import redis_client as connections
from shared.platform.redis_client import RedisError
from shared.protocol.adapter_queues import pool_of
from shared.protocol.version import FormatMismatch, is_marked

EXIT_FAILED = 1
EXIT_REFUSED = 2
_SHOWN = 10


async def explain(redis_url: str, name: str | None, *, as_json: bool) -> int:
    """Print the decision for one pool (or model), or for all; returns the exit status."""
    try:
        pools, known = await _read(redis_url, name)
    except FormatMismatch as error:
        print(f"flotilla: {error}", file=sys.stderr)
        return EXIT_REFUSED
    except (RedisError, OSError) as error:
        where = without_password(redis_url)
        print(
            f"flotilla: no Redis answers at {where}: {error}; run this in the folder of "
            "`flotilla up`, or give --redis-url",
            file=sys.stderr,
        )
        return EXIT_FAILED
    if name is not None and not known:
        print(f"flotilla: there is no pool and no model {name!r} in this fleet", file=sys.stderr)
        return EXIT_FAILED
    if as_json:
        print(json.dumps({"object": "list", "data": pools}, indent=2))
    elif pools:
        print("\n\n".join(text(pool) for pool in pools))
    else:
        print(
            "No autoscaler decides for this "
            + ("fleet" if name is None else "pool")
            + ": start it with `flotilla up --autoscale MIN:MAX`, or set FLOTILLA_AUTOSCALE for "
            "the maintenance process."
        )
    return 0


async def _read(redis_url: str, name: str | None) -> tuple[list[dict[str, Any]], bool]:
    """The pools that are autoscaled, and whether there is one of this name."""
    redis = connections.connect(redis_url, max_connections=2)
    try:
        await is_marked(redis, n_shards=1)  # marks nothing: this command only reads
        registry, store = Registry(redis), ScaleStore(redis)
        models = await registry.models()
        wanted = pool_of(models[name].pool) if name in models else name
        pools = sorted({pool_of(model.pool) for model in models.values()})
        chosen = [pool for pool in pools if wanted in (None, pool)]
        now_s, scales = await store.read(chosen)
        workers = await registry.workers()
        shown = [
            whole(
                scale,
                [worker for worker in workers if worker.pool == pool],
                await store.history(pool),
                now_s,
            )
            for pool, scale in scales.items()
        ]
        return shown, bool(chosen)
    finally:
        await redis.aclose()


def text(pool: dict[str, Any]) -> str:
    """One pool, as `gateway.autoscaler.scale_object.whole` returns it, as text."""
    seen, limits = pool["inputs"], pool["limits"]
    lines = [
        f"{pool['model']} (pool {pool['pool']})",
        "",
        f"  wanted   {_workers(pool['wanted'])}, of {limits['min']} to {limits['max']}",
        f"  actual   {_states(pool['workers'])}",
        f"  because  {pool['reason']}",
        f"  wait     {_wait(pool['wait_s'])}",
        f"  decided  {pool['age_s']:.0f} s ago",
    ]
    if pool["silent"]:
        lines.append("  THE AUTOSCALER HAS STOPPED: this decision is out of date")
    lines += ["", "  what it observed", *(f"    {line}" for line in _inputs(seen))]
    lines += ["", "  its limits and aims", *(f"    {line}" for line in _aims(limits))]
    history = pool["history"][:_SHOWN]
    if history:
        lines += ["", "  its changes, newest first", *map(_change, history)]
    return "\n".join(lines)


def _inputs(seen: dict[str, Any]) -> Sequence[str]:
    tokens = seen["waiting_tokens"]
    about = f", about {tokens:.0f} tokens" if tokens else ""
    waits = f", the oldest for {seen['oldest_s']:.1f} s" if seen["waiting"] else ""
    job = "how long a job takes is not known yet"
    if seen["job_s"] is not None:
        job = f"a job takes {_figure(seen['job_s'])} s"
        job += f" and {seen['job_tokens']:.0f} tokens" if seen["job_tokens"] else ""
    start = "how long a worker takes to start is not known yet"
    if seen["start_s"] is not None:
        start = f"a worker takes {_figure(seen['start_s'])} s to start"
    slots = "how many jobs a worker runs at once is not known yet"
    if seen["slots"] is not None:
        slots = f"a worker runs {seen['slots']} jobs at once"
    return (
        f"{_jobs(seen['waiting'])} waiting{about}{waits}; {_jobs(seen['running'])} running",
        f"{_figure(seen['arrivals_per_s'])} jobs a second arrived lately",
        job,
        slots,
        start,
        f"{_workers(seen['ready'])} ready, {seen['starting']} starting or requested, "
        f"{seen['draining']} draining",
    )


def _aims(limits: dict[str, Any]) -> Sequence[str]:
    return (
        f"a job waits at most {limits['target_wait_s']:g} s once its workers have started",
        f"{limits['utilization']:.0%} of the slots are busy in steady load",
        f"a worker is removed when fewer have been enough for {limits['down_after_s']:g} s",
        f"the last one is removed after {limits['idle_s']:g} s without work",
    )


def _change(entry: dict[str, Any]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry["at_s"]))
    before = "   " if entry["before"] is None else f"{entry['before']:>3}"
    return f"    {when}  {before} -> {entry['wanted']:<3} {entry['reason']}"


def _states(workers: dict[str, int]) -> str:
    return ", ".join(f"{count} {state}" for state, count in sorted(workers.items())) or "none"


def _wait(seconds: float | None) -> str:
    if seconds is None:
        return "for a job that comes now: not known"
    return f"about {_figure(seconds)} s for a job that comes now" if seconds else "none"


def _figure(value: float) -> str:
    return f"{value:.0f}" if value >= 10 else f"{value:.2g}"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _workers(count: int) -> str:
    return "1 worker" if count == 1 else f"{count} workers"

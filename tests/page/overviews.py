"""Made-up answers of /admin/overview: good days, bad days, and figures of every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AT = 1_790_000_000.0
LARGE = 1_204_331
"""A number of jobs that has to fit wherever a number of jobs is shown."""
Overview = dict[str, Any]


def worker(number: int, pool: str = "qwen", **changes: Any) -> dict[str, Any]:
    """A ready worker whose 64 slots are about two thirds full."""
    busy = 36 + 4 * (number % 3)
    return {
        "id": f"w-{number}",
        "pool": pool,
        "state": "ready",
        "phase": "",
        "phase_s": None,
        "engine": "vllm 0.32.0",
        "slots": 64,
        "busy": busy,
        "kv_use": 0.55 + 0.02 * number,
        "heartbeat_age_s": 0.4 + 0.1 * number,
        "output_tokens_per_s": 1800.0 + 30 * number,
        "jobs": [f"job_00{number}{slot:023x}" for slot in range(busy)],
        "adapters": [],
        "lost": False,
    } | changes


def pool(name: str = "qwen", **changes: Any) -> dict[str, Any]:
    """A pool with a short queue, and an autoscaler that is content."""
    return {
        "pool": name,
        "models": ["qwen3-8b"],
        "paused": False,
        "waiting": 9,
        "running": 158,
        "slots": 256,
        "workers_ready": 4,
        "oldest_wait_s": 0.4,
        "estimated_wait_s": 0.3,
        "lanes": [
            {"lane": "priority", "waiting": 2},
            {"lane": "default", "waiting": 7},
            {"lane": "flex", "waiting": 0},
        ],
        "tenants": [
            {"tenant": "search", "waiting": 6, "served": 0.714},
            {"tenant": "support", "waiting": 3, "served": 0.286},
        ],
        "scale": scale(name),
    } | changes


def scale(name: str = "qwen", **changes: Any) -> dict[str, Any]:
    """A decision as gateway/ops/autoscaler/scale_object.py shows it."""
    return {
        "pool": name,
        "model": "qwen3-8b",
        "wanted": 4,
        "reason": "9 jobs wait and 158 run, 64 a worker",
        "decided_at": AT - 1,
        "age_s": 1.0,
    } | changes


def autoscale() -> dict[str, Any]:
    """The answer of /admin/autoscale: the decision with the figures behind it."""
    whole = scale() | {
        "silent": False,
        "workers": {"ready": 4},
        "limits": {
            "min": 2,
            "max": 5,
            "down_after_s": 300.0,
            "idle_s": 600.0,
        },
        "inputs": {
            "waiting": 9,
            "oldest_s": 0.4,
            "running": 158,
            "job_s": 5.1,
            "start_s": 42.0,
            "slots": 64,
            "ready": 4,
            "starting": 0,
            "draining": 0,
        },
        "history": [
            {"at_s": AT - 600, "before": 3, "wanted": 4, "reason": "40 jobs wait and 180 run"},
            {"at_s": AT - 4000, "before": 4, "wanted": 3, "reason": "9 jobs wait and 140 run"},
        ],
    }
    return {"object": "list", "data": [whole]}


def verdict(level: str = "ok", sentence: str = "", **changes: Any) -> dict[str, Any]:
    """The sentence of the ribbon, and its problems."""
    healthy = "Healthy. 4 workers, 158 of 256 slots busy, oldest wait 0.4 s."
    return {
        "level": level,
        "sentence": sentence or healthy,
        "since": None,
        "problems": [],
    } | changes


def problem(kind: str, sentence: str, **changes: Any) -> dict[str, Any]:
    """One problem that needs a person."""
    return {
        "kind": kind,
        "level": "problem",
        "sentence": sentence,
        "since": AT - 42,
        "pool": "qwen",
        "worker": None,
        "action": None,
    } | changes


def overview(**changes: Any) -> Overview:
    """A good day with four workers; `changes` replace members."""
    return {
        "object": "overview",
        "at": AT,
        "gateway": {"id": "gw-0a1b2c3d4e5f", "version": "0.1.0"},
        "engines": ["vllm 0.32.0 (cpu)"],
        "simulated": False,
        "verdict": verdict(),
        "rates": {
            "prompt_tokens": 900.0,
            "output_tokens": 3700.0,
        },
        "pools": [pool()],
        "workers": [worker(number) for number in range(1, 5)],
        "redis": {"ok": True, "used_memory": 48_000_000, "max_memory": 2_000_000_000},
    } | changes


def quiet() -> Overview:
    """A good day."""
    return overview()


def simulated() -> Overview:
    """The engine has no model, which every surface has to say."""
    return overview(engines=["simulated"], simulated=True)


def empty() -> Overview:
    """Nothing has happened yet and no worker is there; nothing is known."""
    sentence = "No worker is running. Requests wait until one starts."
    return overview(
        engines=[],
        verdict=verdict("warning", sentence, problems=[problem("no_worker", sentence)]),
        rates=dict.fromkeys(overview()["rates"], 0.0),
        pools=[],
        workers=[],
        redis={"ok": True, "used_memory": 1_000_000, "max_memory": 0},
    )


def starting() -> Overview:
    """The workers load their models."""
    loading = {"state": "starting", "phase": "loading weights", "busy": 0, "jobs": []}
    workers = [worker(n, **loading, phase_s=41.0 + n, kv_use=0.0) for n in (1, 2)]
    sentence = "Starting. 2 workers load the model (loading weights, 43 s)."
    return overview(
        verdict=verdict("warning", sentence),
        pools=[pool(workers_ready=0, running=0, slots=0, estimated_wait_s=None, scale=None)],
        workers=workers,
    )


def paused() -> Overview:
    """An operator has paused the pool."""
    sentence = "Paused: pool qwen starts no jobs, 4,210 wait."
    return overview(
        verdict=verdict("warning", sentence, problems=[problem("paused", sentence)]),
        pools=[pool(paused=True, waiting=4210, running=0, estimated_wait_s=None)],
        workers=[worker(n, state="paused", busy=0, jobs=[]) for n in range(1, 5)],
    )


def incident() -> Overview:
    """A worker is lost, and the wait rises."""
    lost = problem(
        "worker_lost",
        "w-3 lost 42 s ago (engine dead: out of memory, the 3rd in 10 min). 61 jobs requeued.",
        worker="w-3",
        action={
            "text": "Drain w-3",
            "method": "POST",
            "path": "/admin/workers/w-3/drain",
            "body": {},
        },
    )
    slow = problem(
        "slow",
        "Pool qwen: the oldest job waits 9.8 s; the autoscaler wants 6 workers, the limit is 5.",
        level="warning",
    )
    workers = [worker(number) for number in range(1, 5)]
    workers[2] = worker(3, state="lost", lost=True, heartbeat_age_s=42.0, kv_use=None, busy=61)
    return overview(
        verdict=verdict(
            "problem",
            "w-3 lost 42 s ago. 61 jobs requeued, oldest wait 9.8 s and rising.",
            since=AT - 42,
            problems=[lost, slow],
        ),
        pools=[
            pool(
                waiting=118,
                oldest_wait_s=9.8,
                estimated_wait_s=11.2,
                workers_ready=3,
                scale=scale(wanted=6, reason="118 jobs wait and 192 run; maximum 5"),
            )
        ],
        workers=workers,
    )


def huge() -> Overview:
    """More of everything than fits at ease: pools, workers, digits, long names."""
    name = "meta-llama-3.1-405b-instruct-fp8-dynamic-eu-west-1"
    tenant = "the-department-of-very-long-tenant-names-and-more"
    pools = [
        pool(
            f"{name}-{number}",
            models=[name, f"{name}-{number}-canary"],
            waiting=LARGE,
            running=65_536,
            slots=65_536,
            workers_ready=512,
            oldest_wait_s=86_399.9,
            estimated_wait_s=172_800.0,
            lanes=[{"lane": lane, "waiting": LARGE} for lane in ("priority", "default", "flex")],
            tenants=[{"tenant": f"{tenant}-{each}", "waiting": LARGE} for each in range(8)],
        )
        for number in range(6)
    ]
    workers = [
        worker(
            number,
            f"{name}-{number % 6}",
            id=f"worker-node-eu-west-1-rack-{number:04d}-gpu-7-a1b2c3",
            slots=256,
            busy=256,
            jobs=[],
            kv_use=1.0,
            output_tokens_per_s=123_456.7,
            heartbeat_age_s=9.9,
        )
        for number in range(24)
    ]
    return overview(
        engines=["vllm 0.32.0 (cpu)", "vllm 0.33.1 (NVIDIA H200 NVL)", "simulated"],
        rates={
            "prompt_tokens": 12_345_678.9,
            "output_tokens": 12_345_678.9,
        },
        pools=pools,
        workers=workers,
        redis={"ok": True, "used_memory": 512_000_000_000, "max_memory": 1_024_000_000_000},
    )


def growing(share: float) -> Overview:
    """The same pools and workers with figures from nothing (0) to the largest (1)."""

    def to(most: float, least: float = 0) -> int:
        return round(least + (most - least) * share**3)

    return overview(
        verdict=verdict(
            sentence=f"Healthy. 4 workers, {to(256)} of 256 slots busy, oldest wait {to(3599)} s."
        ),
        rates=dict.fromkeys(overview()["rates"], share**3 * 1_234_567.8),
        pools=[
            pool(
                waiting=to(LARGE),
                running=to(256),
                oldest_wait_s=share**3 * 86_399.9,
                estimated_wait_s=share**3 * 86_399.9,
                lanes=[{"lane": lane, "waiting": to(LARGE)} for lane in ("priority", "default")],
                tenants=[{"tenant": "search", "waiting": to(LARGE)}],
                scale=scale(),
            )
        ],
        workers=[
            worker(
                number,
                busy=to(64),
                kv_use=share,
                jobs=[],
                heartbeat_age_s=share * 9.9,
                output_tokens_per_s=share**3 * 123_456.7,
            )
            for number in range(1, 5)
        ],
    )


SCENES: dict[str, Callable[[], Overview]] = {
    made.__name__: made for made in (quiet, simulated, empty, starting, paused, incident, huge)
}
"""By name: what the stand-in gateway shows."""

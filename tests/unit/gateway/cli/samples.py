"""Objects as the gateway's routes return them."""

from __future__ import annotations

from typing import Any

NOW = 1_790_000_000.0


def job(job_id: str = "job_1", **changes: Any) -> dict[str, Any]:
    return {
        "id": job_id,
        "object": "job",
        "state": "completed",
        "endpoint": "/v1/chat/completions",
        "model": "qwen",
        "pool": "qwen",
        "lane": "default",
        "stream": False,
        "metadata": {"team": "search"},
        "created_at": NOW,
        "started_at": NOW + 0.5,
        "finished_at": NOW + 3.0,
        "deadline_at": None,
        "expires_at": None,
        "retried_from": None,
        "attempts": [
            {"worker": "w-1", "started_at": NOW + 0.5, "ended_at": NOW + 3, "outcome": "completed",
             "entries": 3}
        ],
        "usage": {"prompt_tokens": 4, "completion_tokens": 21, "total_tokens": 25},
        "status_code": 200,
        "error": None,
        "links": {},
        **changes,
    }  # fmt: skip


def jobs(*data: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"object": "list", "data": list(data), "has_more": bool(cursor), "next_cursor": cursor}


WHY = {
    "object": "why",
    "sentence": "It waits for a free slot: position 3.",
    "facts": [{"name": "position", "text": "3 in lane default"}],
}


def worker(worker_id: str = "w-1", **changes: Any) -> dict[str, Any]:
    return {
        "id": worker_id,
        "pool": "qwen",
        "state": "ready",
        "phase": "",
        "phase_s": None,
        "engine": "vllm 0.32.0",
        "slots": 64,
        "busy": 40,
        "kv_use": 0.61,
        "heartbeat_age_s": 0.4,
        "output_tokens_per_s": 1900.0,
        "jobs": ["job_1"],
        "adapters": [],
        "lost": False,
        **changes,
    }


LOST = {
    "kind": "worker_lost",
    "level": "problem",
    "sentence": "w-3 was lost 42 s ago; 61 jobs were requeued.",
    "since": NOW - 42,
    "pool": "qwen",
    "worker": "w-3",
    "do": "Start it again.",
    "action": {
        "text": "Drain w-3",
        "method": "POST",
        "path": "/admin/workers/w-3/drain",
        "body": {},
    },
}


def overview(*problems: dict[str, Any], **changes: Any) -> dict[str, Any]:
    good = {"level": "ok", "sentence": "Healthy. 2 workers, 80 of 128 slots busy."}
    bad = {"level": "problem", "sentence": "1 problem: a worker is lost."}
    return {
        "object": "overview",
        "at": NOW,
        "gateway": {"id": "gw-1", "version": "0.1.0"},
        "engines": ["vllm 0.32.0 (cpu)"],
        "simulated": False,
        "verdict": {**(bad if problems else good), "since": None, "problems": list(problems)},
        "rates": {
            "prompt_tokens": 900.0, "output_tokens": 37_000.0,
        },
        "pools": [
            {
                "pool": "qwen", "models": ["qwen3-8b"], "paused": False, "intake_stopped": False,
                "waiting": 9, "running": 80, "slots": 128, "workers_ready": 2,
                "oldest_wait_s": 0.4, "estimated_wait_s": 0.3,
                "lanes": [{"lane": "priority", "waiting": 2}, {"lane": "default", "waiting": 7}],
                "tenants": [], "scale": None,
            }
        ],
        "workers": [worker(), worker("w-2")],
        "redis": {"ok": True, "used_memory": 123_000_000, "max_memory": 0},
        **changes,
    }  # fmt: skip

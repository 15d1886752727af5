"""A worker whose KV cache is full while it has free slots: the autoscaler asks for another one."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from tests.harness.waiting import wait_for
from tests.vllm.conftest import ModelFleet

pytestmark = pytest.mark.vllm

MODEL = "little-memory"
SLOTS = 64
ARGUMENTS = (
    f"--dtype float32 --enforce-eager --max-num-seqs {SLOTS} --max-model-len 1024 "
    "--kv-cache-memory-bytes 8M"
)
"""Room for 4,096 tokens."""
JOBS = 40
BODY: dict[str, Any] = {"prompt": "word " * 200, "max_tokens": 700, "ignore_eos": True}


def test_jobs_wait_although_slots_are_free(fleet: ModelFleet) -> None:
    served = fleet.start(MODEL, ARGUMENTS, "")
    maintenance = fleet.stack.maintenance(autoscale=f"{MODEL}=1:9", autoscale_tick_s=0.5)
    with httpx.Client(base_url=served.gateway_url, timeout=120) as api:

        def decision() -> dict[str, Any]:
            pools = api.get("/admin/autoscale").json()["data"]
            found: list[dict[str, Any]] = [each for each in pools if each["model"] == MODEL]
            return found[0] if found else {}

        wait_for(lambda: decision().get("wanted") == 1, "one worker is enough")
        sent = {"endpoint": "/v1/completions", "body": {"model": MODEL, **BODY}}
        jobs = [api.post("/jobs", json=sent).json()["id"] for _ in range(JOBS)]
        wait_for(lambda: decision()["wanted"] > 1, "another worker is wanted")
        seen = decision()["inputs"]
        assert seen["slots"] == SLOTS
        assert seen["waiting"] + seen["running"] <= JOBS < SLOTS
        for job in jobs:
            api.post(f"/jobs/{job}/cancel")
    maintenance.terminate()

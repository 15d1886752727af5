"""Many more jobs than the bounds allow: what is accepted is done, what is refused says why."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx

from tests.harness.client import CHAT, chat
from tests.harness.fleet import Stack
from tests.harness.keys import bearer
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

JOBS, TENANTS, AT_ONCE, WAITING = 1000, 8, 32, 100
MEMORY = 26 << 20
"""Beside what Redis uses when nothing is stored; gateways leave 20 MB of it free."""
SMALL, LARGE = 200, 40_000
"""Bytes of the bodies: at first few, as lanes fill, then many, as Redis does."""
UNLIMITED = httpx.Limits(keepalive_expiry=None)
"""A pool that closes surplus connections may close one that another thread begins to use."""
EXPECTED = {"queue_full", "too_many_waiting", "redis_memory_full"}


def test_what_is_accepted_is_done_and_what_is_refused_says_why(
    own_redis: RedisServer, tmp_path: Path
) -> None:
    keys = ",".join(f"t{n}:key-{n}" for n in range(TENANTS))
    bounds = {"max_queue_depth": WAITING, "max_waiting_jobs": WAITING // 2}
    with (
        own_redis.client() as redis,
        closing(Stack(own_redis.url, tmp_path)) as stack,
        httpx.Client(timeout=60, limits=UNLIMITED) as http,
    ):
        info: Any = redis.info("memory")
        redis.config_set("maxmemory", int(info["used_memory"]) + MEMORY)
        # What is kept fills Redis, however slow the clients are.
        urls = [stack.gateway(api_keys=keys, result_ttl_s=300, **bounds).url for _ in range(2)]
        stack.worker(sim_step_ms=20, sim_max_num_seqs=64)

        def submit(n: int) -> tuple[int, str, dict[str, str]]:
            """Submit a job; return the status, its id or the code of the refusal, and its key."""
            # Half of the jobs are of one tenant, whose own bound is reached first.
            key = bearer(f"key-{n % TENANTS if n % 2 else 0}")
            body = chat(max_tokens=40, ignore_eos=True, user="u" * (SMALL, LARGE)[2 * n >= JOBS])
            wanted = {"endpoint": CHAT, "body": body}
            answer = http.post(f"{urls[n % 2]}/jobs", json=wanted, headers=key)
            shown = answer.json()
            accepted = answer.status_code == 202
            return answer.status_code, shown["id"] if accepted else shown["error"]["code"], key

        with ThreadPoolExecutor(AT_ONCE) as clients:
            found = list(clients.map(submit, range(JOBS)))
        refused = Counter(code for status, code, _ in found if status != 202)
        assert refused.keys() <= EXPECTED, refused
        assert refused["redis_memory_full"] > 0
        keys_of = {job_id: key for status, job_id, key in found if status == 202}
        for job_id, key in keys_of.items():

            def is_completed(url: str = f"{urls[0]}/jobs/{job_id}", key: Any = key) -> bool:
                job = http.get(url, headers=key).json()
                assert job["state"] in {"queued", "in_progress", "completed"}
                return bool(job["state"] == "completed")

            wait_for(is_completed, "an accepted job is completed", deadline_s=120)
        info = redis.info("errorstats")
        assert "errorstat_OOM" not in info

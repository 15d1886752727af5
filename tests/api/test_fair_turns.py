"""Tenants whose jobs wait take turns: beside a flood, by their weights, and when one comes late."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from tests.harness.client import MODEL
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import NO_CREDIT
from tests.harness.waiting import wait_for

SLOTS = 4
WEIGHTS = {"one": 1, "two": 2, "four": 4}
TENANTS = ("flood", "neighbour", "first", "second", "late", *WEIGHTS)
Job = dict[str, Any]


class Fleet:
    """A gateway with a key for each tenant, and one worker with few slots."""

    def __init__(self, gateway: Process) -> None:
        self._api = httpx.Client(base_url=gateway.url, timeout=60)

    def close(self) -> None:
        self._api.close()

    def _call(self, method: str, path: str, tenant: str, **sent: Any) -> Any:
        headers = {"authorization": f"Bearer key-of-{tenant}"}
        return self._api.request(method, path, headers=headers, **sent).raise_for_status().json()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No job begins meanwhile, so that what is submitted waits, however slow the machine is."""
        path = "/admin/pools/simulated"
        self._call("POST", f"{path}/pause", "operator", json={})
        yield
        self._call("POST", f"{path}/resume", "operator", json={})

    def submit(self, tenant: str, count: int, tokens: int = 16) -> None:
        """Submit jobs that generate so many tokens each."""
        body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        request = {"endpoint": "/v1/completions", "body": body}
        with ThreadPoolExecutor(8) as threads:
            for _ in range(count):
                threads.submit(self._call, "POST", "/jobs", tenant, json=request)
        assert len(self.jobs(tenant)) >= count

    def jobs(self, tenant: str) -> list[Job]:
        """All jobs of a tenant."""
        found: list[Job] = []
        query: dict[str, Any] = {"limit": 100}
        while True:
            page = self._call("GET", "/jobs", tenant, params=query)
            found += page["data"]
            if not page["has_more"]:
                return found
            query["cursor"] = page["next_cursor"]

    def finished(self, *tenants: str) -> list[tuple[str, Job]]:
        """The jobs of these tenants, each with its tenant, in the order in which they ended."""

        def all_have_ended() -> list[tuple[str, Job]] | None:
            found = [(tenant, job) for tenant in tenants for job in self.jobs(tenant)]
            return found if all(job["finished_at"] for _, job in found) else None

        found = wait_for(all_have_ended, "all jobs have ended") or []
        assert {job["state"] for _, job in found} == {"completed"}
        return sorted(found, key=lambda each: float(each[1]["finished_at"]))


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    keys = ",".join(f"{tenant}:key-of-{tenant}" for tenant in TENANTS)
    gateway = module_stack.gateway(
        api_keys=keys,
        admin_keys="operator:key-of-operator",
        tenants=json.dumps({name: {"weight": weight} for name, weight in WEIGHTS.items()}),
        **NO_CREDIT,
    )
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0, sim_max_num_seqs=SLOTS, **NO_CREDIT)
    with contextlib.closing(Fleet(gateway)) as fleet:
        yield fleet


def after(ended: Sequence[tuple[str, Job]], tenant: str) -> list[str]:
    """Whose jobs have ended after the last one of this tenant was submitted, in their order."""
    submitted = max(job["created_at"] for owner, job in ended if owner == tenant)
    return [owner for owner, job in ended if job["finished_at"] > submitted]


def test_a_neighbour_is_served_beside_a_flood(fleet: Fleet) -> None:
    with fleet.paused():
        fleet.submit("flood", 200)
    wait_for(
        lambda: sum(job["state"] == "completed" for job in fleet.jobs("flood")) >= 20,
        "the flood is served",
    )
    with fleet.paused():
        fleet.submit("neighbour", 10)
    owners = after(fleet.finished("flood", "neighbour"), "neighbour")
    assert owners.count("flood") > 60, "the flood was over"
    last = len(owners) - owners[::-1].index("neighbour")
    assert owners[:last].count("flood") <= 10 + 3 * SLOTS


def test_shares_follow_the_weights(fleet: Fleet) -> None:
    """Of what is generated: the answers of one tenant are longer than those of the others."""
    tokens = {"one": 24, "two": 12, "four": 12}
    with fleet.paused():
        for tenant in WEIGHTS:
            fleet.submit(tenant, 120, tokens[tenant])
    ended = fleet.finished(*WEIGHTS)
    served = generated_while_all_wait(ended, dict.fromkeys(WEIGHTS, 120))
    assert 1.5 < served["two"] / served["one"] < 2.6
    assert 1.5 < served["four"] / served["two"] < 2.6


def generated_while_all_wait(
    ended: Sequence[tuple[str, Job]], submitted: Mapping[str, int]
) -> Counter[str]:
    """The tokens of each tenant until the first one has no job left that waits."""
    served: Counter[str] = Counter()
    done: Counter[str] = Counter()
    for tenant, job in ended:
        served[tenant] += job["usage"]["completion_tokens"]
        done[tenant] += 1
        if done[tenant] > submitted[tenant] - SLOTS:
            break
    return served


def test_who_comes_late_has_turns_at_once_but_no_credit(fleet: Fleet) -> None:
    others = ("first", "second")
    with fleet.paused():
        for tenant in others:
            fleet.submit(tenant, 120)
    wait_for(
        lambda: sum(job["state"] == "completed" for job in fleet.jobs("first")) >= 40,
        "they are served",
    )
    with fleet.paused():
        fleet.submit("late", 60)
    owners = after(fleet.finished(*others, "late"), "late")
    assert owners.index("late") <= 3 * SLOTS
    window = Counter(owners[: 12 * SLOTS])
    assert min(window[tenant] for tenant in (*others, "late")) >= 2 * SLOTS, window

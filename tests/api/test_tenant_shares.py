"""What one tenant takes of a fleet beside others: lanes, budgets, batches, unanswered prompts."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, MODEL, batch_line, chat
from tests.harness.fleet import Stack
from tests.harness.keys import KEYS, OPERATOR, bearer
from tests.harness.waiting import wait_for

SLOTS = 8
ESTIMATE = 60
"""At most so many tokens more than `max_tokens` are reserved for a short request."""
Json = dict[str, Any]


class Fleet:
    """A gateway, maintenance, and one worker with few slots, whose prefill is slow."""

    def __init__(self, stack: Stack, files: Path) -> None:
        self.url = stack.gateway(
            **KEYS,
            storage_url=str(files),
            tenants=json.dumps({"team": {"priority": True}}),
        ).url
        stack.maintenance(storage_url=str(files))
        stack.worker(
            sim_step_ms=10,
            sim_step_us_per_seq=0,
            sim_max_num_seqs=SLOTS,
            sim_prefill_us_per_token=250,
        )
        self.clients = contextlib.ExitStack()
        self.operator = self.client(OPERATOR)

    def client(self, headers: dict[str, str]) -> httpx.Client:
        limits = httpx.Limits(max_connections=100)
        client = httpx.Client(base_url=self.url, headers=headers, timeout=60, limits=limits)
        return self.clients.enter_context(client)

    def key(self, tenant: str, **fields: Any) -> tuple[httpx.Client, str]:
        """A client with a new key, which the gateway knows, and the key's id."""
        made = self.operator.post("/admin/keys", json={"tenant": tenant, **fields}).json()
        client = self.client(bearer(made["secret"]))
        wait_for(lambda: client.get("/version").status_code == 200, "the key is known")
        return client, made["id"]

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """No job begins meanwhile."""
        path = f"/admin/pools/{MODEL}"
        assert self.operator.post(f"{path}/pause", json={}).status_code == 200
        yield
        assert self.operator.post(f"{path}/resume", json={}).status_code == 200


@pytest.fixture(scope="module")
def fleet(module_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    found = Fleet(module_stack, tmp_path_factory.mktemp("files"))
    with found.clients:
        yield found


def used(client: httpx.Client) -> Json:
    """What the client's tenant has used."""
    total: Json = client.get("/v1/usage").json()["total"]
    return total


def tokens_used(client: httpx.Client) -> int:
    total = used(client)
    return int(total["input_tokens"] + total["output_tokens"])


# --- lanes ---


@pytest.mark.parametrize(
    ("tier", "other_tier", "served_as"),
    [("priority", "priority", "default"), ("default", "flex", "flex")],
    ids=["priority", "flex"],
)
def test_a_better_lane_leaves_a_tenth_to_others(
    fleet: Fleet, tier: str, other_tier: str, served_as: str
) -> None:
    """The other tenant has no right to the lane `priority`."""
    scopes = ["infer", "jobs", "priority"]
    clients = {
        tier: fleet.key("hurried", scopes=scopes)[0],
        served_as: fleet.key("other")[0],
    }

    def submit(served: str, asked: str, count: int) -> list[str]:
        body = chat("x", max_tokens=16, ignore_eos=True, service_tier=asked)
        sent = {"endpoint": CHAT, "body": body}
        made = [clients[served].post("/jobs", json=sent).json() for _ in range(count)]
        assert {job["lane"] for job in made} == {served}
        return [job["id"] for job in made]

    with fleet.paused():
        jobs = {tier: submit(tier, tier, 200), served_as: submit(served_as, other_tier, 60)}
    starts = sorted(
        (ended(clients[served], job_id)["started_at"], served)
        for served, ids in jobs.items()
        for job_id in ids
    )
    # Jobs of both lanes wait until the last of these starts.
    begun = Counter(served for _, served in starts[:200])
    assert 0.1 < begun[served_as] / begun.total() < 0.3, begun


def ended(client: httpx.Client, job_id: str) -> Json:
    """The job, once it has ended."""

    def found() -> Json | None:
        job: Json = client.get(f"/jobs/{job_id}").json()
        return job if job["finished_at"] else None

    return wait_for(found, "the job ends")


def test_the_lane_priority_is_no_default_right(fleet: Fleet) -> None:
    plain, team = fleet.key("plain")[0], fleet.client(bearer("s3cret"))
    body = chat("x", max_tokens=2, service_tier="priority")
    job = {"endpoint": CHAT, "body": body}
    for client, lane in ((plain, "default"), (team, "priority")):
        assert client.post(CHAT, json=body).json()["service_tier"] == lane
        with client.stream("POST", CHAT, json=body | {"stream": True}) as answer:
            assert f'"service_tier":"{lane}"' in answer.read().decode()
        assert client.post("/jobs", json=job).json()["lane"] == lane
    refused = plain.post("/jobs", json=job | {"lane": "priority"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")


# --- what counts ---


def test_a_prompt_that_an_engine_has_begun_counts_without_an_answer(fleet: Fleet) -> None:
    client, _ = fleet.key("begun")
    body = chat("word " * 4800, max_tokens=4)  # prefill takes 1.5 s

    def is_begun(job: Json) -> bool:
        return bool(client.get(f"/jobs/{job['id']}").json()["state"] == "in_progress")

    for number in range(1, 4):
        job = client.post("/jobs", json={"endpoint": CHAT, "body": body}).json()
        wait_for(lambda j=job: is_begun(j), "a worker has it")  # type: ignore[misc]
        assert client.post(f"/jobs/{job['id']}/cancel").status_code == 200
        wait_for(lambda n=number: used(client)["jobs"] == n, "it is counted")  # type: ignore[misc]
    assert used(client)["cancelled"] == 3
    assert 3 * 6000 <= used(client)["input_tokens"] <= 3 * 6100
    with fleet.paused():
        job = client.post("/jobs", json={"endpoint": CHAT, "body": body}).json()
        before = used(client)["input_tokens"]
        assert client.post(f"/jobs/{job['id']}/cancel").status_code == 200
        wait_for(lambda: used(client)["jobs"] == 4, "it is counted")
    assert used(client)["input_tokens"] == before


# --- budgets ---


def test_no_more_jobs_are_accepted_than_a_budget_has_tokens_for(fleet: Fleet) -> None:
    client, _ = fleet.key("spender", limits={"tokens_per_day": 1000})
    body = chat("x", max_tokens=400, ignore_eos=True)
    codes, is_used_up = Counter[str](), threading.Event()

    def spend() -> None:
        while not is_used_up.is_set():
            answer = client.post("/jobs", json={"endpoint": CHAT, "body": body})
            code = "" if answer.status_code == 202 else answer.json()["error"]["code"]
            codes[code] += 1
            if code == "budget_exceeded":
                is_used_up.set()
            elif code:
                assert answer.headers["retry-after"] == "1"
                assert "reserved for requests that have not ended" in answer.text
                is_used_up.wait(0.1)

    with ThreadPoolExecutor(8) as threads:
        spending = [threads.submit(spend) for _ in range(8)]
    for each in spending:
        each.result()
    assert codes["rate_limit_exceeded"] > 0, "the budget was reserved before it was used"
    wait_for(lambda: used(client)["jobs"] == codes[""], "all are counted")
    assert 1000 <= tokens_used(client) <= 1000 + 400 + ESTIMATE


def test_lines_of_a_batch_wait_for_their_keys_budget(fleet: Fleet) -> None:
    client, key = fleet.key("frugal", limits={"tokens_per_day": 1000})
    lines = [batch_line(str(n), max_tokens=40, ignore_eos=True) for n in range(2000)]
    batch = make_batch(client, lines)

    def told() -> str:
        found = client.get(f"/v1/batches/{batch['id']}").json()
        assert found["status"] in ("validating", "in_progress")
        return str(found["errors"]["data"][0]["code"]) if found["errors"] else ""

    wait_for(lambda: told() == "budget_exceeded", "the batch tells that its budget is used up")
    assert 1000 <= tokens_used(client) <= 1000 + 40 + ESTIMATE
    more = {"tokens_per_day": 1500}
    assert fleet.operator.put(f"/admin/keys/{key}/limits", json=more).status_code == 200
    wait_for(lambda: tokens_used(client) >= 1500, "it goes on with a larger budget")
    wait_for(lambda: told() == "budget_exceeded", "the batch tells it again")
    assert tokens_used(client) <= 1500 + 40 + ESTIMATE
    assert fleet.operator.put(f"/admin/keys/{key}/limits", json={}).status_code == 200
    wait_for(lambda: not told(), "without a limit nothing waits")
    client.post(f"/v1/batches/{batch['id']}/cancel")


# --- batches ---


def make_batch(client: httpx.Client, lines: list[bytes], count: int = 1) -> Json:
    """Make so many batches of these lines; the last one."""
    file = {"file": ("in.jsonl", b"\n".join(lines))}
    stored = client.post("/v1/files", data={"purpose": "batch"}, files=file).json()
    fields = {"input_file_id": stored["id"], "endpoint": CHAT, "completion_window": "24h"}
    made = [client.post("/v1/batches", json=fields) for _ in range(count)]
    assert {answer.status_code for answer in made} == {200}, made[-1].text
    last: Json = made[-1].json()
    return last


def test_batches_share_by_tenants_and_not_by_batches(fleet: Fleet) -> None:
    many, one = fleet.key("many")[0], fleet.key("one")[0]
    lines = [batch_line(str(n)) for n in range(300)]
    with fleet.paused():
        make_batch(many, lines, 12)
        wait_for(lambda: waiting(many) == 100, "their lines wait")
        make_batch(one, lines)
        wait_for(lambda: waiting(one) == 100, "as many lines of one batch wait")


def waiting(client: httpx.Client) -> int:
    """Jobs that wait, 100 at most."""
    return len(client.get("/jobs", params={"state": "queued", "limit": 100}).json()["data"])


def test_inputs_are_checked_in_turns_by_tenant(fleet: Fleet) -> None:
    many, one = fleet.key("flood")[0], fleet.key("late")[0]
    lines = [batch_line(str(n)) for n in range(15_000)]
    with fleet.paused():
        make_batch(many, lines, 60)
        make_batch(one, lines, 3)
        make_batch(one, lines[:10], 2)
        # Ten inputs or so, of 2 MB each: a minute or more beside busy processes.
        few = "the inputs of the tenant with few are checked"
        wait_for(lambda: not validating(one), few, deadline_s=300)
        assert validating(many) > 30


def validating(client: httpx.Client) -> int:
    """Batches whose input is not checked yet."""
    found = client.get("/v1/batches", params={"limit": 100}).json()["data"]
    return [batch["status"] for batch in found].count("validating")

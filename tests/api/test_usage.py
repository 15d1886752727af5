"""Who used what: the ledger of a fleet whose clients leave, cancel and retry."""

from __future__ import annotations

import contextlib
import csv
import io
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from tests.harness.client import CHAT, chat, http, unread
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR, TEAM, bearer
from tests.harness.logs import tokens_in_logs
from tests.harness.waiting import wait_for

MODEL, FORMULA = "one", "=1+2"
REQUESTS = int(os.environ.get("LEDGER_REQUESTS", "60"))
"""Random ones, with something killed or paused each two seconds meanwhile."""
SECRET_PROMPT = "a sentence that must not be kept"


class Fleet:
    """A gateway, a slow worker, and maintenance."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.clients: list[httpx.Client] = []
        self.gateway: Process = stack.gateway(**KEYS, disconnect_grace_s=0)
        self.maintenance = stack.maintenance(usage_days=90)
        self.worker = self.add_worker()
        self.operator = httpx.Client(base_url=self.gateway.url, headers=OPERATOR, timeout=60)

    def add_worker(self) -> Process:
        """A worker with both models."""
        return self.stack.worker(
            served_model_name=f"{MODEL},{FORMULA}", sim_step_ms=20, sim_step_us_per_seq=0
        )

    def client(self, tenant: str) -> tuple[httpx.Client, str]:
        """A client with a key of its own, and the key's id."""
        made = self.operator.post("/admin/keys", json={"tenant": tenant}).json()
        headers = bearer(made["secret"])
        client = httpx.Client(base_url=self.gateway.url, headers=headers, timeout=60)
        self.clients.append(client)
        return client, made["id"]

    def usage(self, tenant: str, by: str = "key,model", **more: Any) -> list[dict[str, Any]]:
        answer = self.operator.get("/admin/usage", params={"tenant": tenant, "by": by, **more})
        assert answer.status_code == 200, answer.text
        rows: list[dict[str, Any]] = answer.json()["data"]
        return rows

    def only_row(self, tenant: str, jobs: int = 1) -> dict[str, Any]:
        """The row of a tenant, once so many of its jobs are counted."""

        def counted() -> int:
            return sum(row["jobs"] for row in self.usage(tenant))

        wait_for(lambda: counted() == jobs, "its jobs are counted")
        (row,) = self.usage(tenant)
        return row


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    found = Fleet(module_stack)
    with found.operator:
        yield found
    for client in found.clients:
        client.close()


def request(max_tokens: int = 5, **fields: Any) -> dict[str, Any]:
    fields = {"model": MODEL, "ignore_eos": True} | fields
    return chat(SECRET_PROMPT, **fields, max_tokens=max_tokens)


def headers_of(client: httpx.Client) -> dict[str, str]:
    return {"authorization": client.headers["authorization"]}


def tokens_of(row: dict[str, Any]) -> tuple[int, int]:
    return row["input_tokens"], row["output_tokens"]


def test_answers_count_for_their_key_and_model(fleet: Fleet) -> None:
    client, key = fleet.client("one")
    first = client.post(CHAT, json=request()).json()["usage"]
    second = client.post(CHAT, json=request(n=3)).json()["usage"]
    row = fleet.only_row("one", 2)
    assert (row["key"], row["model"], row["completed"]) == (key, MODEL, 2)
    assert tokens_of(row) == (
        first["prompt_tokens"] + second["prompt_tokens"],
        first["completion_tokens"] + second["completion_tokens"],
    )
    assert row["engine_s"] > 0
    assert row["tenant"] is row["day"] is None
    # The key of the settings is another one, and has no id.
    assert http.post(fleet.gateway.url + CHAT, json=request(), headers=TEAM).status_code == 200
    assert fleet.only_row("team")["key"] == ""


def tokens_in_log(client: httpx.Client, job_id: str) -> tuple[int, int]:
    """Of the prompt and of the answer; a job that no worker has begun shows no usage."""
    found = client.get(f"/jobs/{job_id}").json().get("usage_so_far")
    return (found["prompt_tokens"], found["completion_tokens"]) if found else (0, 0)


def test_a_client_that_leaves_a_stream_midway_pays_for_what_was_made(fleet: Fleet) -> None:
    """LiteLLM #14457: the use of such a stream was lost."""
    client, _ = fleet.client("midway")
    with client.stream("POST", CHAT, json=request(4000, stream=True)) as answer:
        parts = answer.iter_raw()
        received = b""
        while received.count(b"data:") < 5:
            received += next(parts)
        job_id = answer.headers["x-flotilla-job-id"]
    row = fleet.only_row("midway")
    assert row["cancelled"] == 1
    assert tokens_of(row) == tokens_in_log(client, job_id)
    assert 3 <= row["output_tokens"] < 4000
    assert row["input_tokens"] > 0


def test_a_client_that_leaves_a_whole_answer_pays_for_what_was_made(fleet: Fleet) -> None:
    """LiteLLM #37992: it was recorded with no tokens."""
    client, _ = fleet.client("whole")
    with unread(fleet.gateway, request(4000), headers=headers_of(client)):
        (job,) = wait_for(lambda: client.get("/jobs").json()["data"], "its job is there")
        wait_for(lambda: tokens_in_log(client, job["id"])[1], "it has output")
    row = fleet.only_row("whole")
    assert row["cancelled"] == 1
    assert tokens_of(row) == tokens_in_log(client, job["id"])
    assert row["output_tokens"] > 0


def test_a_response_that_is_deleted_while_it_is_made_is_paid_for(fleet: Fleet) -> None:
    body = {"model": MODEL, "input": "Go on", "background": True, "ignore_eos": True}
    clients = [fleet.client("deleted")[0] for _ in range(8)]
    made = [
        client.post("/v1/responses", json=body | {"max_output_tokens": 4000}).json()["id"]
        for client in clients
    ]
    for client, response in zip(clients, made, strict=True):
        job = "job_" + response.removeprefix("resp_")
        wait_for(lambda c=client, j=job: tokens_in_log(c, j)[1] > 5, "it has output")  # type: ignore[misc]
    for client, response in zip(clients, made, strict=True):
        assert client.delete(f"/v1/responses/{response}").status_code == 200
    wait_for(lambda: len(fleet.usage("deleted")) == len(clients), "its jobs are counted")
    rows = fleet.usage("deleted")
    assert all(row["input_tokens"] > 0 and row["output_tokens"] > 5 for row in rows), rows


def test_a_client_that_leaves_before_the_first_token_pays_nothing(fleet: Fleet) -> None:
    client, _ = fleet.client("early")
    body = request(4000, stream=True)
    fleet.worker.stop(signal.SIGSTOP)
    try:
        with unread(fleet.gateway, body, headers=headers_of(client)):
            wait_for(lambda: client.get("/jobs").json()["data"], "its job is there")
        row = fleet.only_row("early")
    finally:
        fleet.worker.stop(signal.SIGCONT)
    assert row["cancelled"] == 1
    assert tokens_of(row) == (0, 0)
    assert row["queue_s"] + row["engine_s"] > 0


def test_a_repeated_job_counts_again_and_a_repeated_call_does_not(fleet: Fleet) -> None:
    client, _ = fleet.client("again")
    headers = {"idempotency-key": "k"}
    for _ in range(2):
        assert client.post(CHAT, json=request(), headers=headers).status_code == 200
    job = client.post("/jobs", json={"endpoint": CHAT, "body": request(4000)}).json()
    client.post(f"/jobs/{job['id']}/cancel")
    assert client.post(f"/jobs/{job['id']}/retry", json={"body": request()}).status_code == 202
    row = fleet.only_row("again", 3)
    assert (row["completed"], row["cancelled"]) == (2, 1)


def test_a_tenant_sees_its_own_use_and_only_operators_that_of_others(fleet: Fleet) -> None:
    client, key = fleet.client("own")
    client.post(CHAT, json=request())
    fleet.only_row("own")
    body = client.get("/v1/usage", params={"by": "key"}).json()
    assert [row["key"] for row in body["data"]] == [key]
    assert body["total"]["jobs"] == 1
    assert client.get("/v1/usage", params={"tenant": "one"}).status_code == 400
    assert client.get("/v1/usage", params={"by": "tenant"}).status_code == 400
    refused = client.get("/admin/usage")
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    days = fleet.operator.get("/admin/usage", params={"by": "day,tenant"}).json()
    today = datetime.now(UTC).date().isoformat()
    assert (today, "own") in {(row["day"], row["tenant"]) for row in days["data"]}
    assert (days["to"], len(days["by"])) == (today, 2)
    assert sum(row["jobs"] for row in days["data"]) == days["total"]["jobs"]


def test_csv_has_no_formulas(fleet: Fleet) -> None:
    client, _ = fleet.client("sheet")
    client.post(CHAT, json=request(model=FORMULA))
    row = fleet.only_row("sheet")
    assert row["model"] == FORMULA
    params = {"tenant": "sheet", "by": "day,model"}
    for headers, form in (({"accept": "text/csv"}, ""), ({}, "csv")):
        answer = fleet.operator.get(
            "/admin/usage", params=params | {"format": form}, headers=headers
        )
        assert answer.headers["content-type"].startswith("text/csv")
        (found,) = csv.DictReader(io.StringIO(answer.text))
        assert found["model"] == f"'{FORMULA}"
        assert found["input_tokens"] == str(row["input_tokens"])
    assert client.get("/v1/usage", headers={"accept": "text/csv"}).text.startswith("day,model,jobs")


@pytest.mark.parametrize(
    ("params", "param"),
    [
        ({"by": "day,prompt"}, "by"),
        ({"from": "2026-13-01"}, "from"),
        ({"from": "2026-02-01", "to": "2026-01-01"}, "from"),
        ({"from": "2020-01-01", "to": "2026-01-01"}, "from"),
        ({"format": "xml"}, "format"),
        ({"start_time": "0"}, "start_time"),
    ],
)
def test_what_is_asked_wrongly_is_told(fleet: Fleet, params: dict[str, str], param: str) -> None:
    answer = fleet.operator.get("/admin/usage", params=params)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


def test_days_without_use_are_empty(fleet: Fleet) -> None:
    before = (datetime.now(UTC).date() - timedelta(days=5)).isoformat()
    body = fleet.operator.get("/admin/usage", params={"from": before, "to": before}).json()
    assert (body["data"], body["total"]["jobs"]) == ([], 0)
    assert fleet.usage("one", to="0001-01-01") == []


def test_the_ledger_tells_its_lag_and_holds_no_prompts(fleet: Fleet) -> None:
    client, _ = fleet.client("lag")
    client.post(CHAT, json=request())
    fleet.only_row("lag")
    metrics = fleet.operator.get("/metrics").text
    assert 'flotilla_usage_entries{outcome="dropped"} 0.0' in metrics
    assert 'flotilla_usage_entries{outcome="added"}' in metrics
    assert "flotilla_usage_oldest_age_seconds" in metrics
    assert SECRET_PROMPT not in fleet.operator.get("/admin/usage").text
    for process in fleet.stack.processes:
        assert SECRET_PROMPT not in process.log.read_text()


def play(client: httpx.Client, seed: int) -> None:
    """A request that is answered, left, or cancelled after a while."""
    chance = random.Random(seed)
    model, n = chance.choice([MODEL, FORMULA]), chance.choice([1, 1, 3])
    body = request(chance.choice([5, 40, 400]), model=model, n=n)
    match chance.choice(["whole", "leaves", "stream", "leaves the stream", "job", "retry"]):
        case "whole":
            client.post(CHAT, json=body | {"max_tokens": 5})
        case "leaves":
            with contextlib.suppress(httpx.ReadTimeout):
                client.post(CHAT, json=body, timeout=chance.uniform(0.1, 1.5))
        case "job" | "retry" as way:
            job = client.post("/jobs", json={"endpoint": CHAT, "body": body}).json()["id"]
            time.sleep(chance.uniform(0, 1.5))
            if client.post(f"/jobs/{job}/cancel").status_code == 200 and way == "retry":
                client.post(f"/jobs/{job}/retry", json={"body": body | {"max_tokens": 5}})
        case way:
            most = chance.randrange(1, 30) if way == "leaves the stream" else 1000
            body |= {"stream": True} | ({} if most < 1000 else {"max_tokens": 5})
            with client.stream("POST", CHAT, json=body) as answer:
                for _, _part in zip(range(most), answer.iter_raw(), strict=False):
                    pass


def disturb(fleet: Fleet, worker: Process, ended: threading.Event) -> None:
    """Kill a worker or maintenance, or pause the pool for a moment, again and again."""
    chance = random.Random(33)
    while not ended.wait(chance.uniform(1, 3)):
        match chance.choice(["worker", "maintenance", "pause"]):
            case "worker":
                worker.kill()  # its jobs go on with the other one
                worker = fleet.add_worker()
            case "maintenance":
                fleet.maintenance.kill()
                fleet.maintenance = fleet.stack.maintenance(usage_days=90)
            case "pause":
                fleet.operator.post(f"/admin/pools/{MODEL}/pause")
                ended.wait(0.5)
                wait_for(lambda: resumed(fleet), "the pool goes on")


def resumed(fleet: Fleet) -> bool:
    """A worker that was just killed does not answer."""
    return fleet.operator.post(f"/admin/pools/{MODEL}/resume").status_code == 200


def test_the_ledger_equals_the_logs_whoever_leaves_or_is_killed(fleet: Fleet) -> None:
    tenants, ended = ["red", "green"], threading.Event()
    clients = [fleet.client(tenant)[0] for tenant in (*tenants, "red")]
    with ThreadPoolExecutor(13) as threads:
        disturbing = threads.submit(disturb, fleet, fleet.add_worker(), ended)
        played = [threads.submit(play, clients[n % len(clients)], n) for n in range(REQUESTS)]
        try:
            for each in played:
                each.result()
        finally:
            ended.set()
        disturbing.result()

    def rows() -> dict[tuple[str, ...], list[int]]:
        answer = fleet.operator.get("/admin/usage", params={"by": "tenant,key,model"}).json()
        return {
            (row["tenant"], row["key"], row["model"]): [
                row["jobs"], row["input_tokens"], row["output_tokens"]
            ]
            for row in answer["data"]
            if row["tenant"] in tenants
        }  # fmt: skip

    def jobs_counted() -> int:
        return sum(jobs for jobs, _, _ in rows().values())

    def is_idle() -> bool:
        listed = [
            client.get("/jobs", params={"limit": 1, "state": state}).json()
            for client in clients
            for state in ("queued", "in_progress")
        ]
        return not any(each["data"] for each in listed)

    wait_for(is_idle, "all jobs have ended")
    expected = tokens_in_logs(fleet.stack.redis_url, tenants)
    jobs = sum(row[0] for row in expected.values())
    assert jobs >= REQUESTS
    wait_for(lambda: jobs_counted() >= jobs, "all jobs are counted")
    assert rows() == expected
    assert sum(output for _, _, output in expected.values()) > 500

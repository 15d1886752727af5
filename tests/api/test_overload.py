"""Refusals at the door over HTTP, and what OpenAI's unmodified SDK does with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.harness.client import CHAT, chat, http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import bearer as key
from tests.harness.waiting import wait_for

DEPTH = 4


def body(tokens: int = 100, **fields: Any) -> dict[str, Any]:
    return chat(max_tokens=tokens, ignore_eos=True, **fields)


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    """A fleet of one worker with one slot, which has done some jobs of half a second."""
    module_stack.worker(sim_step_ms=5, sim_step_us_per_seq=0, sim_max_num_seqs=1)
    gateway = module_stack.gateway(
        max_queue_depth=DEPTH, max_waiting_jobs=2, api_keys="a:1,b:2,c:3,d:4"
    )
    for _ in range(4):
        answer = http.post(gateway.url + CHAT, headers=key("1"), json=body(), timeout=60)
        assert answer.status_code == 200
    wait_for(lambda: _estimates(gateway), "the gateway knows the pace of the worker")
    return gateway


def _estimates(gateway: Process) -> bool:
    """Whether a job that waits has an estimate: the gateway has read the worker's pace."""
    jobs = [
        http.post(f"{gateway.url}/jobs", headers=key(secret), json={"body": body()}).json()
        for secret in "12"
    ]
    return any(job.get("estimated_wait_s") is not None for job in jobs)


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=60) as client:
        wait_for(lambda: _is_idle(client), "nothing runs")
        yield client
        cancel(client)


def _is_idle(api: httpx.Client) -> bool:
    jobs = [api.get("/jobs", headers=key(each)).json()["data"] for each in "1234"]
    return all(job["finished_at"] for each in jobs for job in each)


def cancel(api: httpx.Client, secrets: str = "1234") -> None:
    """The jobs of these tenants."""
    for secret in secrets:
        for job in api.get("/jobs", headers=key(secret)).json()["data"]:
            if not job["finished_at"]:
                api.post(f"/jobs/{job['id']}/cancel", headers=key(secret))


def run_one(api: httpx.Client) -> None:
    """A job of the first tenant runs for longer than a test takes."""
    made = api.post("/jobs", headers=key("1"), json={"body": body(4000)}).json()

    def runs() -> bool:
        found = api.get(f"/jobs/{made['id']}", headers=key("1")).json()
        return bool(found["state"] == "in_progress")

    wait_for(runs, "it runs")


def fill(api: httpx.Client) -> None:
    """A job runs, and the lane is full."""
    run_one(api)
    for secret in "1122":
        answer = api.post("/jobs", headers=key(secret), json={"body": body(4000)})
        assert answer.status_code == 202, answer.text


class Refused:
    """Makes room at the first refusal that a client of the SDK gets, and times each next call."""

    def __init__(self, api: httpx.Client) -> None:
        self._api = api
        self.url = str(api.base_url).rstrip("/")
        self._told: dict[int, float] = {}
        """When each thread's client may come back, on the monotonic clock."""
        self.http = httpx.Client(
            event_hooks={"request": [self._on_request], "response": [self._on_response]}
        )

    def _on_request(self, _: httpx.Request) -> None:
        assert time.monotonic() >= self._told.get(threading.get_ident(), 0), "it is too early"

    def _on_response(self, answer: httpx.Response) -> None:
        if answer.status_code == 503:
            told_s = float(answer.headers["retry-after"])
            self._told[threading.get_ident()] = time.monotonic() + told_s
            if len(self._told) == 1:
                cancel(self._api, "12")


@pytest.fixture
def refused(api: httpx.Client) -> Iterator[Refused]:
    found = Refused(api)
    with found.http:
        yield found


def ask(refused: Refused, secret: str, **options: Any) -> int:
    """How often a client of the SDK has been refused before it is answered."""
    url = f"{refused.url}/v1"
    sdk = openai.OpenAI(base_url=url, api_key=secret, http_client=refused.http, **options)
    raw = sdk.chat.completions.with_raw_response.create(
        **chat(max_tokens=100), extra_body={"ignore_eos": True}
    )
    assert raw.parse().choices[0].message.content
    retries: int = raw.retries_taken
    return retries


def test_openais_sdk_waits_for_as_long_as_it_is_told(api: httpx.Client, refused: Refused) -> None:
    fill(api)
    answer = api.post(CHAT, headers=key("3"), json=body())
    assert (answer.status_code, answer.json()["error"]["code"]) == (503, "queue_full")
    assert int(answer.headers["retry-after"]) >= 1
    assert "4 jobs wait" in answer.json()["error"]["message"]
    assert "There will be room in about" in answer.json()["error"]["message"]
    assert 1 <= ask(refused, "3") <= openai.DEFAULT_MAX_RETRIES


def test_many_clients_of_the_sdk_that_are_refused_are_served_in_the_end(
    api: httpx.Client, refused: Refused
) -> None:
    fill(api)
    with ThreadPoolExecutor(8) as pool:
        retries = list(pool.map(lambda secret: ask(refused, secret, max_retries=10), "33334444"))
    assert sum(retries) > 0


def test_a_tenants_own_bound_is_429(api: httpx.Client) -> None:
    run_one(api)
    for _ in range(2):
        assert api.post("/jobs", headers=key("1"), json={"body": body(4000)}).status_code == 202
    refused = api.post("/jobs", headers=key("1"), json={"body": body()})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "too_many_waiting")
    assert int(refused.headers["retry-after"]) >= 1
    assert "x-should-retry" not in refused.headers
    assert api.post("/jobs", headers=key("2"), json={"body": body()}).status_code == 202


def check_unreachable(refused: httpx.Response) -> None:
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "deadline_unreachable")
    assert "would wait for about" in refused.json()["error"]["message"]
    assert int(refused.headers["retry-after"]) >= 1


def test_a_job_whose_deadline_cant_be_met_is_refused_at_the_door(api: httpx.Client) -> None:
    fill(api)
    for header in ("x-flotilla-queue-deadline", "x-flotilla-max-wait"):
        check_unreachable(api.post(CHAT, headers=key("3") | {header: "0.1"}, json=body()))
    for deadline in ({"deadline_s": 0.1}, {"queue_deadline_s": 0.1}, {"max_wait_s": 0.1}):
        refused = api.post("/jobs", headers=key("3"), json={"body": body()} | deadline)
        assert refused.json()["error"]["code"] == "deadline_unreachable"


def test_a_call_that_waits_for_no_longer_than_it_may_is_answered(api: httpx.Client) -> None:
    answer = api.post("/jobs", headers=key("3"), json={"body": body(), "max_wait_s": 60}).json()
    assert answer["queue_deadline_s"] == 60
    headers = key("3") | {"x-flotilla-max-wait": "60"}
    assert api.post(CHAT, headers=headers, json=body()).status_code == 200


def test_a_call_whose_key_has_made_a_job_gets_its_answer(api: httpx.Client) -> None:
    named = key("3") | {"idempotency-key": "overload-1"}
    first = api.post(CHAT, headers=named, json=body())
    fill(api)
    again = api.post(CHAT, headers=named | {"x-flotilla-max-wait": "0.1"}, json=body())
    assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])

"""Limits of keys and tenants on a fleet of three gateways, with clients of OpenAI's SDK."""

from __future__ import annotations

import contextlib
import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from tests.harness.client import CHAT as CHAT_PATH
from tests.harness.client import MODEL, http
from tests.harness.client import chat as chat_body
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, OPERATOR
from tests.harness.keys import bearer as headers
from tests.harness.waiting import wait_for

CHAT = chat_body("x", max_tokens=2)


class Fleet:
    """Gateways and a worker."""

    def __init__(self, stack: Stack, files: Path) -> None:
        self.stack = stack
        stored = {"storage_url": str(files)}
        self.gateways = [stack.gateway(**KEYS, **stored) for _ in range(3)]
        stack.maintenance(**stored)
        stack.worker(sim_step_ms=5, sim_step_us_per_seq=0)

    def operator(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        url = self.gateways[0].url + path
        answer = http.request(method, url, headers=OPERATOR, json=body, timeout=30)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def key(self, tenant: str = "team", scopes: list[str] | None = None, **limits: int) -> str:
        """A new key that all gateways know."""
        more = {"scopes": scopes} if scopes else {}
        made = self.operator("POST", "/admin/keys", tenant=tenant, limits=limits, **more)
        secret: str = made["secret"]
        for gateway in self.gateways:
            if gateway.popen.poll() is None:
                wait_for(lambda g=gateway: known(g, secret), "the key is known")  # type: ignore[misc]
        return secret


def known(gateway: Process, secret: str) -> bool:
    return http.get(f"{gateway.url}/version", headers=headers(secret)).status_code == 200


def chat(gateway: Process, secret: str, **changes: Any) -> httpx.Response:
    body = CHAT | changes
    url = gateway.url + CHAT_PATH
    return http.post(url, headers=headers(secret), json=body, timeout=60)


@pytest.fixture(scope="module")
def fleet(module_stack: Stack, tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    return Fleet(module_stack, tmp_path_factory.mktemp("files"))


def test_a_limit_holds_over_all_gateways(fleet: Fleet) -> None:
    secret = fleet.key(requests_per_minute=40)
    started = time.monotonic()
    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(lambda n: chat(fleet.gateways[n % 3], secret), range(150)))
    refilled = int((time.monotonic() - started) * 40 / 60) + 1
    codes = [answer.status_code for answer in answers]
    assert 40 <= codes.count(200) <= 40 + refilled
    assert set(codes) == {200, 429}
    refused = next(answer for answer in answers if answer.status_code == 429)
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("rate_limit_exceeded", "requests")
    assert "requests per minute of this API key: limit 40, left 0" in error["message"]
    assert refused.headers["retry-after"] in {"1", "2"}
    assert refused.headers["x-ratelimit-limit-requests"] == "40"
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    accepted = [answer for answer in answers if answer.status_code == 200]
    lefts = sorted(int(answer.headers["x-ratelimit-remaining-requests"]) for answer in accepted)
    assert lefts[-1] == 39


def test_a_limit_is_exact_though_a_gateway_is_killed(fleet: Fleet) -> None:
    killed = fleet.stack.gateway(**KEYS)
    most, gateways = 300, [*fleet.gateways[:2], killed]
    secret = fleet.key(requests_per_minute=most)
    wait_for(lambda: known(killed, secret), "the key is known")
    answered: Counter[int] = Counter()
    started, refusals_needed, at = time.monotonic(), 100, {"first": 0.0, "refused": 0.0}

    def ask_until_refused(turn: int) -> None:
        with httpx.Client(headers=headers(secret), timeout=60) as client:
            while answered[429] < refusals_needed:
                turn += 1
                url, sent_at = gateways[turn % 3].url + CHAT_PATH, time.monotonic()
                with contextlib.suppress(httpx.TransportError):  # of the killed one
                    code = client.post(url, json=CHAT).status_code
                    answered[code] += 1
                    at["first"] = at["first"] or time.monotonic()
                    if code == 429:
                        at["refused"] = max(at["refused"], sent_at)
                if answered[200] > most // 2 and killed.popen.poll() is None:
                    killed.popen.kill()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask_until_refused, range(8)))
    assert killed.popen.poll() is not None
    # As a request is refused, all that was allowed until then is taken. Of those in flight as the
    # gateway was killed, at most one of each thread is not known.
    least = most + (at["refused"] - at["first"]) * most / 60
    allowed = most + (time.monotonic() - started) * most / 60
    assert least * 0.99 - 1 - 8 <= answered[200] <= allowed * 1.01


def test_openais_sdk_waits_as_long_as_it_is_told(fleet: Fleet) -> None:
    secret = fleet.key(requests_per_minute=30)
    refused = False
    while not refused:
        started = time.monotonic()
        refused = chat(fleet.gateways[0], secret).status_code == 429
    client = openai.OpenAI(base_url=f"{fleet.gateways[1].url}/v1", api_key=secret, max_retries=5)
    with client:
        for _ in range(3):
            client.chat.completions.create(**CHAT)
        # Less than one was left then, and one is allowed each two seconds.
        assert time.monotonic() - started > 3.9
        once = client.with_options(max_retries=0)
        with pytest.raises(openai.RateLimitError) as caught:
            [once.chat.completions.create(**CHAT) for _ in range(10)]
        assert caught.value.code == "rate_limit_exceeded"


def test_a_streamed_answer_and_a_job_tell_what_is_left(fleet: Fleet) -> None:
    secret = fleet.key(requests_per_minute=100, tokens_per_minute=100_000)
    streamed = chat(fleet.gateways[0], secret, stream=True)
    assert streamed.headers["x-ratelimit-remaining-requests"] == "99"
    assert 99_000 < int(streamed.headers["x-ratelimit-remaining-tokens"]) < 100_000
    assert streamed.headers["x-ratelimit-reset-requests"].endswith("ms")
    url = f"{fleet.gateways[0].url}/jobs"
    job = http.post(url, headers=headers(secret), json={"body": CHAT})
    assert (job.status_code, job.headers["x-ratelimit-remaining-requests"]) == (202, "98")


@pytest.fixture
def paused(fleet: Fleet) -> Iterator[None]:
    """No job ends, so that the ledger settles nothing."""
    fleet.operator("POST", f"/admin/pools/{MODEL}/pause")
    yield
    fleet.operator("POST", f"/admin/pools/{MODEL}/resume")


def submit(gateway: Process, secret: str, max_tokens: Any, **more: str) -> httpx.Response:
    job = {"body": CHAT | {"max_tokens": max_tokens}}
    return http.post(f"{gateway.url}/jobs", headers=headers(secret) | more, json=job, timeout=60)


def test_a_request_that_asks_for_too_many_tokens_waits(fleet: Fleet, paused: None) -> None:
    secret = fleet.key(tokens_per_minute=3000)
    assert submit(fleet.gateways[0], secret, 2900).status_code == 202
    refused = submit(fleet.gateways[1], secret, 2900)
    assert refused.status_code == 429
    assert refused.json()["error"]["type"] == "tokens"
    assert int(refused.headers["retry-after"]) > 10


@pytest.mark.parametrize("asked", ["900", 900.0, " 900 "])
def test_tokens_as_text_are_counted_like_numbers(fleet: Fleet, paused: None, asked: Any) -> None:
    left = "x-ratelimit-remaining-tokens"
    found = []
    for max_tokens in (asked, 900):
        answer = submit(fleet.gateways[0], fleet.key(tokens_per_minute=1000), max_tokens)
        assert answer.status_code == 202, answer.text
        found.append(int(answer.headers[left]))
    # The bodies have different lengths, of which the prompt's part is estimated.
    assert max(found) - min(found) < 20
    assert max(found) < 110


def test_concurrent_requests_are_bounded_and_none_is_left_over(fleet: Fleet) -> None:
    secret = fleet.key(concurrent_requests=3)
    long = {"stream": True, "max_tokens": 3500, "ignore_eos": True}
    url = fleet.gateways[0].url + CHAT_PATH
    with httpx.Client(headers=headers(secret), timeout=60) as client:

        def open_one() -> httpx.Response:
            request = client.build_request("POST", url, json=CHAT | long)
            return client.send(request, stream=True)

        opened = [open_one() for _ in range(3)]
        assert [each.status_code for each in opened] == [200] * 3
        refused = chat(fleet.gateways[1], secret)
        assert refused.status_code == 429
        assert refused.json()["error"]["type"] == "concurrent_requests"
        assert refused.headers["retry-after"] == "1"
        job = http.post(
            f"{fleet.gateways[0].url}/jobs", headers=headers(secret), json={"body": CHAT}
        )
        assert job.status_code == 202, "a job waits in the queue"
        opened[0].close()  # its client leaves
        wait_for(lambda: chat(fleet.gateways[1], secret).status_code == 200, "one is free")
        for each in opened:
            each.close()
        # Answers, errors, and clients that leave: as many as before are free again.
        for _ in range(5):
            assert chat(fleet.gateways[2], secret, n="x").status_code in {400, 429}
        wait_for(lambda: chat(fleet.gateways[2], secret).status_code == 200, "one is free")

        def is_open() -> bool:
            opened.append(open_one())
            return opened[-1].status_code == 200

        for _ in range(3):
            wait_for(is_open, "all are free")
        assert chat(fleet.gateways[1], secret).status_code == 429
        for each in opened:
            each.close()


def test_all_keys_of_a_tenant_share_its_limits(fleet: Fleet) -> None:
    one, other = fleet.key("shared"), fleet.key("shared", requests_per_minute=1000)
    told = fleet.operator(
        "PUT", "/admin/tenants/shared/limits", requests_per_minute=4, reason="contract"
    )
    assert told["limits"]["requests_per_minute"] == 4
    rows = fleet.operator("GET", "/admin/tenants")["data"]
    assert {row["tenant"]: row["limits"]["requests_per_minute"] for row in rows}["shared"] == 4

    def limited() -> bool:
        found = chat(fleet.gateways[2], one).headers
        return bool(found.get("x-ratelimit-limit-requests") == "4")

    wait_for(limited, "every gateway knows the limit")
    refused = [chat(fleet.gateways[n % 3], (one, other)[n % 2]) for n in range(8)][-1]
    assert refused.status_code == 429
    assert "of the tenant 'shared': limit 4" in refused.json()["error"]["message"]
    fleet.operator("PUT", "/admin/tenants/shared/limits")
    wait_for(lambda: chat(fleet.gateways[2], one).status_code == 200, "it has no limits")


def test_a_keys_limits_are_changed_while_it_is_used(fleet: Fleet) -> None:
    made = fleet.operator("POST", "/admin/keys", tenant="team", limits={"requests_per_minute": 1})
    secret, path = made["secret"], f"/admin/keys/{made['id']}/limits"
    assert [chat(fleet.gateways[0], secret).status_code for _ in range(2)] == [200, 429]
    changed = fleet.operator("PUT", path, requests_per_minute=600, reason="more")
    assert changed["limits"]["requests_per_minute"] == 600
    assert "secret" not in changed
    entry = fleet.operator("GET", "/admin/audit?limit=1")["data"][0]
    assert (entry["action"], entry["subject"], entry["reason"]) == (
        "key.limited",
        made["id"],
        "more",
    )
    assert entry["details"]["limits"] == {"requests_per_minute": 600}

    def left() -> str:
        return str(chat(fleet.gateways[0], secret).headers.get("x-ratelimit-limit-requests"))

    wait_for(lambda: left() == "600", "the new limit holds")
    listed = fleet.operator("GET", "/admin/keys?tenant=team&limit=1000")["data"]
    assert {row["id"]: row["limits"]["requests_per_minute"] for row in listed}[made["id"]] == 600
    url = fleet.gateways[0].url + path
    assert http.put(url, headers=OPERATOR, json={"requests": 1}).status_code == 400
    assert http.put(url, headers=OPERATOR, json={"tokens_per_day": -1}).status_code == 400
    none = f"{fleet.gateways[0].url}/admin/keys/key_{'0' * 24}/limits"
    assert http.put(none, headers=OPERATOR, json={}).status_code == 404


def test_what_is_not_queued_gets_its_tokens_back(fleet: Fleet, paused: None) -> None:
    gateway, secret = fleet.gateways[0], fleet.key(tokens_per_minute=10_000)
    keyed = {"idempotency-key": "one"}
    first = submit(gateway, secret, 4000, **keyed)
    left = int(first.headers["x-ratelimit-remaining-tokens"])
    assert left < 6000
    again = submit(gateway, secret, 4000, **keyed)
    assert again.headers["idempotent-replayed"] == "true"

    def is_back() -> bool:
        found = submit(gateway, secret, 1)
        return int(found.headers["x-ratelimit-remaining-tokens"]) > left - 100

    # Without that it takes 23 s to refill the bucket.
    wait_for(is_back, "the tokens of the repeated call are back", 20)


def test_what_was_not_used_is_given_back_after_the_end(fleet: Fleet) -> None:
    secret = fleet.key("frugal", tokens_per_minute=10_000)
    first = chat(fleet.gateways[0], secret, max_tokens=3500)
    assert int(first.headers["x-ratelimit-remaining-tokens"]) < 6600

    def is_back() -> bool:
        found = chat(fleet.gateways[1], secret, max_tokens=1)
        return int(found.headers["x-ratelimit-remaining-tokens"]) > 9800

    # Without that it takes 21 s to refill the bucket.
    wait_for(is_back, "the tokens are back", 20)


def test_a_budget_ends_with_its_day(fleet: Fleet) -> None:
    secret = fleet.key("budgeted", tokens_per_day=100)
    gateway = fleet.gateways[2]

    def spent() -> bool:
        refused = chat(gateway, secret, max_tokens=20)
        return refused.status_code == 429 and refused.json()["error"]["code"] == "budget_exceeded"

    wait_for(spent, "the budget is spent")
    refused = chat(gateway, secret)
    error = refused.json()["error"]
    assert (error["code"], error["type"]) == ("budget_exceeded", "insufficient_quota")
    assert "tokens per day of this API key: limit 100, left 0" in error["message"]
    assert refused.headers["x-should-retry"] == "false"
    assert 0 < int(refused.headers["retry-after"]) <= 86_400
    client = openai.OpenAI(base_url=f"{gateway.url}/v1", api_key=secret, max_retries=5)
    with client, pytest.raises(openai.RateLimitError):
        client.chat.completions.create(**CHAT)
    # Nor can a batch go on in its place.
    line = {"custom_id": "1", "method": "POST", "url": CHAT_PATH, "body": CHAT}
    files = {"file": ("in.jsonl", json.dumps(line).encode())}
    with httpx.Client(base_url=gateway.url, headers=headers(secret), timeout=30) as api:
        stored = api.post("/v1/files", data={"purpose": "batch"}, files=files).json()
        batch = {"input_file_id": stored["id"], "completion_window": "24h"}
        refused = api.post("/v1/batches", json=batch | {"endpoint": CHAT_PATH})
        assert refused.json()["error"]["code"] == "budget_exceeded", refused.text

    def agree() -> bool:
        """All surfaces say the same, once the last jobs are in the sums."""
        sums = fleet.operator("GET", "/admin/usage?tenant=budgeted")["total"]
        tokens = sums["input_tokens"] + sums["output_tokens"]
        own = http.get(f"{gateway.url}/v1/usage", headers=headers(secret)).json()["limits"]
        (key,) = fleet.operator("GET", "/admin/keys?tenant=budgeted")["data"]
        rows = fleet.operator("GET", "/admin/tenants")["data"]
        (tenant,) = (row for row in rows if row["tenant"] == "budgeted")
        assert key["limits"] == own["key"]["limits"]
        assert tenant["limits"] == own["tenant"]["limits"]
        found = [each["used"] for each in (key, tenant, *own.values())]
        same = {"tokens_today": tokens, "tokens_this_month": tokens}
        return tokens >= 100 and found == [same] * 4

    wait_for(agree, "the use is the same everywhere")
    of_settings = headers("s3cret")
    assert http.get(f"{gateway.url}/v1/usage", headers=of_settings).json()["limits"]["key"] is None


def test_a_lost_gateway_leaves_no_request_counted_for_ever(fleet: Fleet) -> None:
    gateway = fleet.stack.gateway(**KEYS)
    secret = fleet.key(concurrent_requests=1)
    wait_for(lambda: known(gateway, secret), "the key is known")
    url = gateway.url + CHAT_PATH
    body = CHAT | {"stream": True, "max_tokens": 3500, "ignore_eos": True}
    with httpx.Client(headers=headers(secret), timeout=60) as client:
        request = client.build_request("POST", url, json=body)
        assert client.send(request, stream=True).status_code == 200
        gateway.kill()
    assert chat(fleet.gateways[0], secret).status_code == 429
    # Its lease is half a minute.
    wait_for(lambda: chat(fleet.gateways[0], secret).status_code == 200, "its lease is over", 120)

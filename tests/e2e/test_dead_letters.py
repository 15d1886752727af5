"""Dead letters over HTTP: list, replay, drop; retry of a tenant's own jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis as sync_redis

from shared.job.advertised_slots import UNKNOWN, SlotUpdate
from shared.job.job import shard_in
from shared.store.redis import keys
from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.servers import RedisServer
from tests.redis.conftest import open_queue

TEAM, OTHER, ADMIN = ({"authorization": f"Bearer {key}"} for key in ("k-team", "k-other", "k-ops"))
BODY = {"model": "simulated", "messages": [{"role": "user", "content": "POISON"}], "max_tokens": 4}


@pytest.fixture(scope="module")
def gateway(
    redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Process]:
    """A gateway with keys whose jobs are dead letters after one attempt; no worker."""
    with redis_server.client() as client:
        client.flushall()
    stack = Stack(redis_server.url, tmp_path_factory.mktemp("fleet"))
    first = stack.worker(sim_step_ms=1, sim_step_us_per_seq=0)
    first.terminate()  # it has registered the model
    yield stack.gateway(
        api_keys="team:k-team,other:k-other", admin_keys="ops:k-ops", max_attempts=1
    )
    stack.close()


@pytest.fixture
def api(gateway: Process) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=gateway.url, timeout=30) as client:
        yield client


@pytest.fixture
def store(redis_server: RedisServer) -> Iterator[sync_redis.Redis]:
    with redis_server.client() as client:
        yield client


def submit(api: httpx.Client, **fields: Any) -> str:
    answer = api.post("/jobs", headers=TEAM, json={"body": BODY, **fields})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["id"]
    return job_id


def dead(api: httpx.Client, **query: Any) -> list[dict[str, Any]]:
    answer = api.get("/admin/dead", headers=ADMIN, params=query)
    assert answer.status_code == 200, answer.text
    data: list[dict[str, Any]] = answer.json()["data"]
    return data


def letter_of(api: httpx.Client, job_id: str) -> dict[str, Any]:
    (letter,) = (each for each in dead(api, limit=100) if each["job_id"] == job_id)
    return letter


async def _lose(url: str, job_id: str) -> None:
    """Lease all waiting jobs as a worker that is lost with this one."""
    async with open_queue(url) as queue:
        job = await queue.get(job_id)
        assert job is not None
        slots = SlotUpdate(job.pool, "", 0, UNKNOWN)
        acquired = await queue.acquire(shard_in(job_id), "w-lost", 100, 10.0, slots)
        for leased in acquired.jobs:
            await queue.release([leased], "worker_lost", blame=leased.id == job_id)


@pytest.fixture
def given_up(api: httpx.Client, redis_server: RedisServer) -> str:
    """The id of a job whose only attempt was lost."""
    fields = {"metadata": {"a": "b"}, "lane": "flex", "run_deadline_s": 300}
    job_id = submit(api, **fields)
    asyncio.run(_lose(redis_server.url, job_id))
    shown = api.get(f"/jobs/{job_id}", headers=TEAM).json()
    assert (shown["state"], shown["error"]["code"]) == ("failed", "too_many_attempts")
    return job_id


def test_a_job_that_was_given_up_is_a_dead_letter_with_its_history(
    api: httpx.Client, given_up: str
) -> None:
    letter = letter_of(api, given_up)
    assert (letter["what"], letter["reason"], letter["replayable"]) == (
        "attempts",
        "worker_lost",
        True,
    )
    assert letter["job"]["tenant"] == "team"
    (attempt,) = letter["attempts"]
    assert attempt == api.get(f"/jobs/{given_up}", headers=TEAM).json()["attempts"][0]
    assert (attempt["worker"], attempt["outcome"], attempt["entries"]) == (
        "w-lost",
        "worker_lost",
        0,
    )
    answer = api.get(f"/admin/dead/{letter['id']}", headers=ADMIN)
    assert answer.json() == letter


def test_a_dead_letter_is_replayed_once_for_its_tenant(
    api: httpx.Client, given_up: str, store: sync_redis.Redis
) -> None:
    letter = letter_of(api, given_up)
    path = f"/admin/dead/{letter['id']}/replay"
    assert store.pttl(keys.job(0, given_up)) > 86_400_000 * 2, "kept for a replay"
    answer = api.post(path, headers=ADMIN)
    assert answer.status_code == 202, answer.text
    replay = answer.json()
    assert (replay["retried_from"], replay["tenant"]) == (given_up, "team")
    new = api.get(f"/jobs/{replay['job_id']}", headers=TEAM).json()
    assert (new["state"], new["retried_from"], new["lane"]) == ("queued", given_up, "flex")
    assert (new["metadata"], new["run_deadline_s"]) == ({"a": "b"}, 300)
    assert store.hget(keys.job(0, new["id"]), "body") == store.hget(keys.job(0, given_up), "body")
    assert api.get(f"/jobs/{given_up}", headers=TEAM).json()["state"] == "failed"
    assert store.pttl(keys.job(0, given_up)) <= 86_400_000, "kept as other jobs that have ended"
    again = api.post(path, headers=ADMIN)
    assert (again.status_code, again.json()["error"]["code"]) == (404, "not_found")


def test_a_dropped_letter_is_gone_and_its_job_stays_failed(
    api: httpx.Client, given_up: str
) -> None:
    letter = letter_of(api, given_up)
    dropped = api.delete(f"/admin/dead/{letter['id']}", headers=ADMIN)
    expected = {"id": letter["id"], "object": "dead_letter", "deleted": True}
    assert (dropped.status_code, dropped.json()) == (200, expected)
    assert api.delete(f"/admin/dead/{letter['id']}", headers=ADMIN).status_code == 404
    assert api.get(f"/jobs/{given_up}", headers=TEAM).json()["state"] == "failed"


def test_a_letter_whose_job_is_gone_can_not_be_replayed(
    api: httpx.Client, given_up: str, store: sync_redis.Redis
) -> None:
    store.hdel(keys.job(0, given_up), "body")
    letter = letter_of(api, given_up)
    assert not letter["replayable"]
    refused = api.post(f"/admin/dead/{letter['id']}/replay", headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_repeatable")
    store.delete(keys.job(0, given_up))
    refused = api.post(f"/admin/dead/{letter['id']}/replay", headers=ADMIN)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_repeatable")


def test_pages_show_every_letter_once_newest_first(
    api: httpx.Client, store: sync_redis.Redis
) -> None:
    stream = keys.dead_letters(0)
    store.delete(stream)
    for number in range(7):
        what = "attempts" if number % 2 else "log"
        store.xadd(stream, {"what": what, "id": "x", "reason": str(number), "value:v": b"\xff"})
    found, cursor = [], {}
    while True:
        page = api.get("/admin/dead", headers=ADMIN, params={"limit": 3} | cursor).json()
        found += page["data"]
        if not page["has_more"]:
            break
        cursor = {"cursor": page["next_cursor"]}
    assert [letter["reason"] for letter in found] == list("6543210")
    assert found[0]["values"] == {"v": "\\xff"}
    assert [letter["reason"] for letter in dead(api, what="attempts")] == list("531")
    assert [letter["reason"] for letter in dead(api, what="log", limit=2)] == list("64")
    store.delete(stream)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/admin/dead"),
        ("GET", "/admin/dead/000-1-0"),
        ("POST", "/admin/dead/000-1-0/replay"),
        ("DELETE", "/admin/dead/000-1-0"),
        ("GET", "/admin/nothing"),
    ],
)
def test_only_an_operator_may_use_them(api: httpx.Client, method: str, path: str) -> None:
    assert api.request(method, path).status_code == 401
    refused = api.request(method, path, headers=TEAM)
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "missing_scope")
    assert api.request(method, path, headers=ADMIN).status_code in {200, 404}
    assert api.get("/admin/autoscale", headers=TEAM).status_code == 200


@pytest.mark.parametrize("letter_id", ["x", "000-1-0", "fff-1-0", "-", "000-1"])
def test_an_unknown_letter_is_not_found(api: httpx.Client, letter_id: str) -> None:
    for method, path in (("GET", ""), ("POST", "/replay"), ("DELETE", "")):
        answer = api.request(method, f"/admin/dead/{letter_id}{path}", headers=ADMIN)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


@pytest.mark.parametrize("query", ["cursor=x", "limit=0", "what=else", "other=1"])
def test_wrong_parameters_are_refused(api: httpx.Client, query: str) -> None:
    answer = api.get(f"/admin/dead?{query}", headers=ADMIN)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == query.partition("=")[0]


def test_a_tenant_retries_its_own_job_and_the_old_one_stays(
    api: httpx.Client, given_up: str
) -> None:
    path = f"/jobs/{given_up}/retry"
    assert api.post(path, headers=OTHER).status_code == 404
    key = TEAM | {"idempotency-key": given_up}
    answer = api.post(path, headers=key)
    assert answer.status_code == 202, answer.text
    new = answer.json()
    assert answer.headers["location"] == f"/jobs/{new['id']}"
    assert (new["state"], new["retried_from"]) == ("queued", given_up)
    again = api.post(path, headers=key)
    assert (again.json()["id"], again.headers["idempotent-replayed"]) == (new["id"], "true")
    another = api.post(path, headers=TEAM).json()
    assert another["id"] != new["id"]
    refused = api.post(f"/jobs/{new['id']}/retry", headers=TEAM)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_repeatable")
    assert refused.headers["x-should-retry"] == "false"
    for job_id in (new["id"], another["id"]):
        api.post(f"/jobs/{job_id}/cancel", headers=TEAM)
    assert api.post(f"/jobs/{new['id']}/retry", headers=TEAM).status_code == 202
    assert api.get(f"/jobs/{given_up}", headers=TEAM).json()["state"] == "failed"


def test_without_keys_every_client_is_an_operator(stack: Stack) -> None:
    gateway = stack.gateway()
    assert http.get(f"{gateway.url}/admin/dead").json() == {
        "object": "list",
        "data": [],
        "has_more": False,
        "next_cursor": None,
    }

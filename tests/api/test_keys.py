"""API keys on a fleet of three gateways: made, limited, rotated and revoked while it runs."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.client import http
from tests.harness.fleet import Process, Stack
from tests.harness.keys import KEYS, KEYS_WITHOUT_REDIS, OPERATOR, bearer
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

SIMULATED = {"sim_step_ms": 1, "sim_step_us_per_seq": 0}
COMPLETION = {"prompt": "x", "max_tokens": 2}


class Fleet:
    """Three gateways and a worker with two names for its model."""

    def __init__(self, redis: RedisServer, folder: Path) -> None:
        self.redis = redis
        self.stack = Stack(redis.url, folder)
        self.gateways = [self.stack.gateway(**KEYS) for _ in range(3)]
        self.operator = httpx.Client(base_url=self.gateways[0].url, headers=OPERATOR, timeout=30)

    def make(self, tenant: str = "team", **changes: Any) -> dict[str, Any]:
        answer = self.operator.post("/admin/keys", json={"tenant": tenant, **changes})
        assert answer.status_code == 200, answer.text
        made: dict[str, Any] = answer.json()
        return made


def ask(gateway: Process, key: dict[str, Any], path: str = "/version", **body: Any) -> Any:
    method, headers = "POST" if body else "GET", bearer(key["secret"])
    return http.request(method, gateway.url + path, headers=headers, json=body or None, timeout=60)


def status(gateway: Process, key: dict[str, Any], path: str = "/version", **body: Any) -> int:
    code: int = ask(gateway, key, path, **body).status_code
    return code


def code(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["error"]["code"]


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    server.start()
    found = Fleet(server, tmp_path_factory.mktemp("fleet"))
    try:
        found.stack.worker(served_model_name="one,two", **SIMULATED)
        with found.operator:
            yield found
    finally:
        found.stack.close()
        server.stop()


def test_a_new_key_is_known_to_all_gateways_and_a_revoked_one_to_none(fleet: Fleet) -> None:
    key = fleet.make(name="ci")
    assert key["secret"].startswith(key["hint"])
    assert status(fleet.gateways[0], key) == 200
    for gateway in fleet.gateways:
        wait_for(lambda g=gateway: status(g, key) == 200, "it is known")  # type: ignore[misc]
    assert fleet.operator.delete(f"/admin/keys/{key['id']}").json()["revoked"] is True
    assert status(fleet.gateways[0], key) == 401
    for gateway in fleet.gateways:
        wait_for(lambda g=gateway: status(g, key) == 401, "it is refused")  # type: ignore[misc]
    assert code(fleet.operator.delete(f"/admin/keys/{key['id']}")) == (404, "not_found")


def test_a_rotated_key_has_another_secret_and_the_same_id(fleet: Fleet) -> None:
    key = fleet.make(scopes=["infer"], models=["one"])
    other = fleet.operator.post(f"/admin/keys/{key['id']}/rotate", json={"reason": "leaked"}).json()
    assert other["secret"] != key["secret"]
    assert {name: other[name] for name in ("id", "scopes", "models", "tenant")} == {
        "id": key["id"], "scopes": ["infer"], "models": ["one"], "tenant": "team",
    }  # fmt: skip
    assert (status(fleet.gateways[0], key), status(fleet.gateways[0], other)) == (401, 200)
    for gateway in fleet.gateways:
        wait_for(
            lambda g=gateway: (status(g, key), status(g, other)) == (401, 200),  # type: ignore[misc]
            "the old one is refused",
        )


def test_lists_show_no_secret(fleet: Fleet) -> None:
    keys = [fleet.make("listed", name=f"n-{n}") for n in range(3)]
    page = fleet.operator.get("/admin/keys", params={"tenant": "listed", "limit": 2}).json()
    assert (len(page["data"]), page["has_more"]) == (2, True)
    after = {"tenant": "listed", "after": page["data"][-1]["id"]}
    rest = fleet.operator.get("/admin/keys", params=after)
    found = [row["id"] for row in page["data"] + rest.json()["data"]]
    assert sorted(found) == sorted(key["id"] for key in keys)
    assert not any(key["secret"] in rest.text for key in keys)
    rows = fleet.operator.get("/admin/tenants").json()["data"]
    assert {row["tenant"]: row["keys"] for row in rows}["listed"] == 3


def test_pages_go_on_behind_keys_that_were_revoked(fleet: Fleet) -> None:
    made = [fleet.make("paged")["id"] for _ in range(5)]
    seen: list[str] = []
    query = {"tenant": "paged", "limit": 2}
    while (page := fleet.operator.get("/admin/keys", params=query).json())["data"]:
        for row in page["data"]:
            seen.append(row["id"])
            assert fleet.operator.delete(f"/admin/keys/{row['id']}").status_code == 200
        query["after"] = seen[-1]
    assert seen == made[::-1]


def test_a_key_does_what_its_scopes_allow(fleet: Fleet) -> None:
    gateway = fleet.gateways[0]
    infer, jobs = fleet.make(scopes=["infer"]), fleet.make(scopes=["jobs"])
    reads, writes = fleet.make(scopes=["admin:read"]), fleet.make(scopes=["admin:write"])
    call = {"path": "/v1/completions", "model": "one", **COMPLETION}
    job = {"path": "/jobs", "endpoint": "/v1/completions", "body": {"model": "one", **COMPLETION}}
    new_key = {"path": "/admin/keys", "tenant": "x"}
    assert [status(gateway, key, **call) for key in (infer, jobs, reads)] == [200, 403, 403]
    assert [status(gateway, key, **job) for key in (jobs, infer, reads)] == [202, 403, 403]
    for path in ("/admin/keys", "/admin/overview", "/jobs?filter=tenant:*"):
        assert status(gateway, infer, path) == 403
    assert status(gateway, jobs, "/jobs?filter=tenant:*") == 403
    assert [status(gateway, key, "/admin/keys") for key in (reads, writes)] == [200, 403]
    assert [status(gateway, key, **new_key) for key in (reads, writes)] == [403, 200]
    refused = ask(gateway, infer, **job)
    assert code(refused) == (403, "missing_scope")
    assert "scope jobs; yours has: infer" in refused.json()["error"]["message"]


def test_a_key_without_the_scope_jobs_has_the_jobs_of_its_own_calls(fleet: Fleet) -> None:
    gateway, mine, other = fleet.gateways[0], *(fleet.make(scopes=["infer"]) for _ in range(2))
    call = {"model": "one", "prompt": "x", "max_tokens": 8000, "ignore_eos": True, "stream": True}
    with http.stream(
        "POST", f"{gateway.url}/v1/completions", headers=bearer(mine["secret"]), json=call
    ) as answer:
        job = f"/jobs/{answer.headers['x-flotilla-job-id']}"
        cancel = f"{gateway.url}{job}/cancel"
        assert http.post(cancel, headers=bearer(other["secret"])).status_code == 404
        assert ask(gateway, mine, job).json()["state"] in ("queued", "in_progress")
        cancelled = http.post(cancel, headers=bearer(mine["secret"]))
        assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
        answer.read()
    done = ask(gateway, mine, "/v1/completions", model="one", **COMPLETION)
    job = f"/jobs/{done.headers['x-flotilla-job-id']}"
    for part in ("", "/stream", "/result"):
        assert [status(gateway, key, job + part) for key in (mine, other)] == [200, 404]
    assert ask(gateway, mine, f"{job}/stream").content == done.content
    assert status(gateway, mine, "/jobs") == 403
    assert http.post(f"{gateway.url}{job}/retry", headers=bearer(mine["secret"])).status_code == 403


def test_a_key_of_some_models_sees_and_uses_only_these(fleet: Fleet) -> None:
    gateway, key = fleet.gateways[0], fleet.make(models=["one"])

    def listed(key: dict[str, Any]) -> list[str]:
        return [model["id"] for model in ask(gateway, key, "/v1/models").json()["data"]]

    assert (listed(key), set(listed(fleet.make()))) == (["one"], {"one", "two"})
    call = {"path": "/v1/completions", **COMPLETION}
    assert status(gateway, key, model="one", **call) == 200
    answers = [ask(gateway, key, model=name, **call) for name in ("two", "none")]
    assert [code(answer) for answer in answers] == [(404, "model_not_found")] * 2
    texts = {
        answer.json()["error"]["message"].replace(name, "")
        for answer, name in zip(answers, ("two", "none"), strict=True)
    }
    assert len(texts) == 1  # whether there is such a model can't be told
    assert status(gateway, key, "/v1/models/two") == status(gateway, key, "/models/two") == 404
    job = {"endpoint": "/v1/completions", "body": {"model": "two", **COMPLETION}}
    assert status(gateway, key, "/jobs", **job) == 404
    assert status(gateway, key, "/v1/batches", input_file_id="file_1") == 403


def test_a_gateway_without_keys_makes_none(fleet: Fleet) -> None:
    gateway = fleet.stack.gateway()
    made = http.post(f"{gateway.url}/admin/keys", json={"tenant": "t"})
    assert code(made) == (501, "keys_not_configured")
    assert http.get(f"{gateway.url}/admin/keys").status_code == 200


def test_an_expired_key_is_refused(fleet: Fleet) -> None:
    key = fleet.make(expires_at=time.time() + 1)
    wait_for(lambda: status(fleet.gateways[0], key) == 401, "it has expired")
    assert "expired" in ask(fleet.gateways[0], key).text
    past = fleet.operator.post("/admin/keys", json={"tenant": "t", "expires_at": 1})
    assert past.json()["error"]["param"] == "expires_at"


@pytest.mark.parametrize(
    "body",
    [{}, {"tenant": ""}, {"tenant": "a b"}, {"tenant": "t", "scopes": ["root"]},
     {"tenant": "t", "scopes": []}, {"tenant": "t", "models": [""]}, {"tenant": "t", "x": 1}],
)  # fmt: skip
def test_a_wrong_body_is_refused(fleet: Fleet, body: dict[str, Any]) -> None:
    assert fleet.operator.post("/admin/keys", json=body).status_code == 400


def test_each_change_is_a_line_of_the_audit_log(fleet: Fleet) -> None:
    key = fleet.make("audited", reason="for the audit")
    fleet.operator.request("DELETE", f"/admin/keys/{key['id']}", json={"reason": "it left"})
    log = fleet.gateways[0].log.read_text()
    lines = [line for line in log.splitlines() if "flotilla.audit" in line and key["id"] in line]
    assert [
        reason in line for line, reason in zip(lines, ("for the audit", "it left"), strict=True)
    ]
    assert all('"tenant": "ops"' in line and key["secret"] not in line for line in lines)
    page = fleet.operator.get("/admin/audit", params={"limit": 1}).json()
    assert page["has_more"] is True
    rest = fleet.operator.get("/admin/audit", params={"after": page["data"][0]["id"]}).json()
    found = [each for each in page["data"] + rest["data"] if each["subject"] == key["id"]]
    told = [(each["action"], each["reason"], each["tenant"]) for each in found]
    assert told == [("key.revoked", "it left", "ops"), ("key.created", "for the audit", "ops")]
    assert key["created_at"] <= found[1]["at"] <= found[0]["at"] <= time.time()
    assert fleet.operator.get("/admin/audit?after=x").status_code == 400
    assert key["secret"] not in log


def test_a_dump_of_redis_has_no_key_in_it(fleet: Fleet) -> None:
    keys = [fleet.make() for _ in range(3)]
    for key in keys:
        assert status(fleet.gateways[0], key, "/v1/completions", model="one", **COMPLETION) == 200
    with fleet.redis.client() as client:
        client.config_set("rdbcompression", "no")
        client.save()
        folder = Path(str(client.config_get("dir")["dir"]))
    dumped = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    assert keys[0]["id"].encode() in dumped
    secrets = [key["secret"] for key in keys] + ["s3cret", "adm1n"]
    assert not [secret for secret in secrets if secret.encode() in dumped]


def test_without_redis_known_keys_go_on_for_a_while(tmp_path: Path, own_redis: RedisServer) -> None:
    stack = Stack(own_redis.url, tmp_path)
    try:
        gateway = stack.gateway(**KEYS_WITHOUT_REDIS)
        made = http.post(f"{gateway.url}/admin/keys", headers=OPERATOR, json={"tenant": "t"})
        key, other = made.json(), {"secret": made.json()["secret"] + "x"}
        assert (status(gateway, key), status(gateway, other)) == (200, 401)
        own_redis.stop()
        assert status(gateway, key) == 200
        wait_for(
            lambda: (status(gateway, other), status(gateway, key)) == (503, 200),
            "another key may be a new one, the known one is good",
        )
        wait_for(lambda: status(gateway, key) == 503, "the key can't be checked any more")
        refused = ask(gateway, key)
        assert code(refused) == (503, "redis_unavailable")
        assert refused.headers["retry-after"]
        assert status(gateway, {"secret": "s3cret"}) == 200
        own_redis.start()
        wait_for(lambda: status(gateway, key) == 200, "the key is known again")
    finally:
        stack.close()

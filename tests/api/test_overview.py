"""A fleet of processes as operators see it: overview, jobs by filter, what happened and why."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from tests.harness.client import MODEL
from tests.harness.fleet import Process, Stack
from tests.harness.inner_settings import PATIENT
from tests.harness.servers import RedisServer
from tests.harness.waiting import wait_for

TEAM = {"authorization": "Bearer s3cret"}
OPERATOR = {"authorization": "Bearer adm1n"}
SIMULATED: dict[str, Any] = {
    "sim_step_ms": 5,
    "sim_step_us_per_seq": 0,
    "sim_max_num_seqs": 2,
    **PATIENT,
}
POOL = MODEL
ENDLESS = 8000


class Fleet:
    """A gateway with keys, and two workers with two slots each."""

    def __init__(self, stack: Stack) -> None:
        self.stack = stack
        self.gateway = stack.gateway(api_keys="team:s3cret", admin_keys="ops:adm1n", **PATIENT)
        self.workers = {f"w-{n}": self.worker(f"w-{n}") for n in (1, 2)}
        self.team = httpx.Client(base_url=self.gateway.url, headers=TEAM, timeout=60)
        self.operator = httpx.Client(base_url=self.gateway.url, headers=OPERATOR, timeout=60)

    def worker(self, worker_id: str) -> Process:
        return self.stack.worker(worker_id=worker_id, **SIMULATED)

    def submit(self, tokens: int = 4, **more: Any) -> str:
        body = {"model": MODEL, "prompt": "x", "max_tokens": tokens, "ignore_eos": True}
        answer = self.team.post("/jobs", json={"endpoint": "/v1/completions", "body": body} | more)
        assert answer.status_code == 202, answer.text
        job_id: str = answer.json()["id"]
        return job_id

    def ended(self, job_id: str) -> dict[str, Any]:
        def job() -> dict[str, Any] | None:
            found: dict[str, Any] = self.team.get(f"/jobs/{job_id}?wait=5").json()
            return found if found["finished_at"] else None

        return wait_for(job, "the job has ended") or {}

    def overview(self) -> dict[str, Any]:
        answer = self.operator.get("/admin/overview")
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def ids(self, words: str, client: httpx.Client | None = None) -> list[str]:
        answer = (client or self.team).get("/jobs", params={"filter": words, "limit": 100})
        assert answer.status_code == 200, answer.text
        return [job["id"] for job in answer.json()["data"]]

    def cancel_all(self) -> None:
        answer = self.operator.post("/admin/jobs/cancel", json={"filter": "tenant:*"})
        assert answer.status_code == 200, answer.text
        wait_for(lambda: self.idle(), "nothing runs")

    def idle(self) -> bool:
        return bool(self.team.get("/load").json()["server_load"] == 0)


@pytest.fixture(scope="module")
def fleet(module_stack: Stack) -> Iterator[Fleet]:
    started = Fleet(module_stack)
    with started.team, started.operator:
        wait_for(lambda: started.overview()["pools"], "the fleet is known")
        wait_for(lambda: started.overview()["pools"][0]["workers_ready"] == 2, "both are ready")
        yield started


def check(fleet: Fleet, method: str, path: str, body: Any, status: str = "200") -> None:
    """Check an answer against the API's description."""
    described = fleet.team.get("/openapi.json").json()
    content = described["paths"][path][method]["responses"][status]["content"]
    schema = content["application/json"]["schema"] | {"components": described["components"]}
    Draft202012Validator(schema).validate(body)


def test_the_overview_is_for_operators_and_as_described(fleet: Fleet) -> None:
    for path in ("/admin/overview", "/admin/stream", "/admin/tenants", "/admin/jobs/job_x/why"):
        assert fleet.team.get(path).status_code == 403, path
    found = fleet.overview()
    check(fleet, "get", "/admin/overview", found)
    assert found["verdict"]["level"] == "ok", found["verdict"]
    assert found["verdict"]["sentence"].startswith("Healthy. 2 workers, ")
    assert found["simulated"] is True
    (pool,) = found["pools"]
    assert (pool["pool"], pool["slots"], pool["workers_ready"]) == (POOL, 4, 2)
    assert [worker["id"] for worker in found["workers"]] == ["w-1", "w-2"]


def test_the_stream_sends_the_same_each_second(fleet: Fleet) -> None:
    with fleet.operator.stream("GET", "/admin/stream") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        blocks: list[list[str]] = [[]]
        for line in answer.iter_lines():
            if line:
                blocks[-1].append(line)
            else:
                blocks.append([])
            if len(blocks) == 3:
                break
    first, second, _ = blocks
    assert first[:2] == ["retry: 1000", "event: overview"]
    assert second[0] == "event: overview"
    at = [json.loads(block[-1].removeprefix("data: "))["at"] for block in (first, second)]
    assert at[1] > at[0]


def test_a_full_fleet_shows_jobs_waits_and_rates(fleet: Fleet) -> None:
    jobs = [fleet.submit(ENDLESS) for _ in range(6)]

    def busy() -> dict[str, Any] | None:
        found = fleet.overview()
        (pool,) = found["pools"]
        shown = [job for worker in found["workers"] for job in worker["jobs"]]
        counts = pool["running"], pool["waiting"], pool["busy"], len(shown)
        return found if counts == (4, 2, 4, 4) and found["rates"]["output_tokens"] else None

    found = wait_for(busy, "the overview shows them")
    assert found is not None
    (tenant,) = found["pools"][0]["tenants"]
    # Its level is known from the first renewal on.
    assert tenant.pop("served") in (None, 1.0)
    assert tenant == {"tenant": "team", "waiting": 2}
    waiting = fleet.ids("state:queued")
    assert set(waiting) < set(jobs)
    why = fleet.team.get(f"/jobs/{waiting[0]}/why").json()
    check(fleet, "get", "/jobs/{job_id}/why", why)
    assert "all 4 slots of the pool simulated are taken" in why["sentence"]
    running = fleet.ids("state:in_progress worker:w-1")
    assert len(running) == 2
    assert "w-1 has run it" in fleet.team.get(f"/jobs/{running[0]}/why").json()["sentence"]
    fleet.cancel_all()
    assert "cancelled" in fleet.team.get(f"/jobs/{jobs[0]}/why").json()["sentence"]


def test_what_has_happened_to_a_job(fleet: Fleet) -> None:
    job_id = fleet.submit(20)
    fleet.ended(job_id)
    found = fleet.team.get(f"/jobs/{job_id}/timeline").json()
    check(fleet, "get", "/jobs/{job_id}/timeline", found)
    names = [event["event"] for event in found["events"]]
    assert names[0] == "submitted"
    assert names[-3:] == ["claimed", "first_token", "completed"]
    assert [span["name"] for span in found["spans"]][-2:] == ["prefill", "decode"]
    assert found["spans"][-1]["worker"].startswith("w-")
    request = fleet.team.get(f"/jobs/{job_id}/request").json()
    check(fleet, "get", "/jobs/{job_id}/request", request)
    assert (request["endpoint"], request["body"]["max_tokens"]) == ("/v1/completions", 20)
    for path in ("timeline", "why"):
        assert fleet.operator.get(f"/jobs/{job_id}/{path}").status_code == 404
        assert fleet.operator.get(f"/admin/jobs/{job_id}/{path}").status_code == 200
    shown = fleet.operator.get(f"/admin/jobs/{job_id}").json()
    assert (shown["tenant"], "text" in shown, "result" in shown) == ("team", False, False)


def test_jobs_by_filter(fleet: Fleet) -> None:
    job_id = fleet.submit(metadata={"customer": "42"})
    fleet.ended(job_id)
    assert job_id in fleet.ids("state:completed model:simul since:1h lane:default")
    assert fleet.ids("metadata.customer:42") == [job_id]
    assert job_id not in fleet.ids("-state:completed")
    assert fleet.ids(f"id:{job_id} until:1h") == []
    refused = fleet.team.get("/jobs", params={"filter": "sate:failed"})
    assert refused.status_code == 400
    assert "did you mean `state`" in refused.json()["error"]["message"]
    assert fleet.team.get("/jobs", params={"filter": "tenant:*"}).status_code == 403
    assert fleet.ids(f"id:{job_id}", fleet.operator) == []
    assert fleet.ids(f"tenant:* id:{job_id}", fleet.operator) == [job_id]
    assert fleet.ids(f"tenant:team id:{job_id}", fleet.operator) == [job_id]


def test_cancel_and_retry_by_filter(fleet: Fleet) -> None:
    jobs = [fleet.submit(ENDLESS, metadata={"run": "bulk"}) for _ in range(5)]
    words = "tenant:team metadata.run:bulk"
    asked = {"filter": words, "dry_run": True}
    shown = fleet.operator.post("/admin/jobs/cancel", json=asked).json()
    check(fleet, "post", "/admin/jobs/cancel", shown)
    assert (shown["matched"], shown["done"], set(shown["ids"])) == (5, 0, set(jobs))
    assert not fleet.ids("metadata.run:bulk state:cancelled")
    done = fleet.operator.post("/admin/jobs/cancel", json={"filter": words, "reason": "test"})
    assert (done.json()["matched"], done.json()["done"]) == (5, 5)
    assert set(fleet.ids("metadata.run:bulk state:cancelled")) == set(jobs)
    again = fleet.operator.post("/admin/jobs/retry", json={"filter": words}).json()
    assert (again["matched"], again["done"], len(again["new_ids"])) == (5, 5, 5)
    assert set(fleet.ids("metadata.run:bulk -state:cancelled")) == set(again["new_ids"])
    twice = fleet.operator.post("/admin/jobs/retry", json={"filter": words}).json()
    assert set(twice["new_ids"]) == set(again["new_ids"]), "a job is repeated once"
    assert fleet.team.post("/admin/jobs/cancel", json=asked).status_code == 403
    assert fleet.operator.post("/admin/jobs/cancel", json={}).status_code == 400
    assert fleet.operator.post("/admin/jobs/cancel", json={"filter": "x:y"}).status_code == 400
    fleet.cancel_all()


def test_a_retry_with_another_body(fleet: Fleet) -> None:
    job_id = fleet.submit(4, metadata={"a": "b"}, lane="flex")
    fleet.ended(job_id)
    assert fleet.team.post(f"/jobs/{job_id}/retry").status_code == 409, "it has completed"
    body = {"model": MODEL, "prompt": "x", "max_tokens": 7, "ignore_eos": True}
    answer = fleet.team.post(f"/jobs/{job_id}/retry", json={"body": body})
    assert answer.status_code == 202, answer.text
    new = fleet.ended(answer.json()["id"])
    assert (new["state"], new["retried_from"], new["lane"]) == ("completed", job_id, "flex")
    assert (new["usage"]["completion_tokens"], new["metadata"]) == (7, {"a": "b"})
    for wrong in (
        {"body": 3},
        {"body": body | {"n": 9999}},
        {"other": 1},
        {"body": {"model": "?"}},
    ):
        assert fleet.team.post(f"/jobs/{job_id}/retry", json=wrong).status_code in (400, 404)


def test_intake_can_be_stopped(fleet: Fleet) -> None:
    path = f"/admin/pools/{POOL}"
    stopped = fleet.operator.post(f"{path}/pause", json={"intake": True, "reason": "maintenance"})
    assert stopped.status_code == 200, stopped.text
    body = {"model": MODEL, "prompt": "x", "max_tokens": 2}
    refused = fleet.team.post("/v1/completions", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "intake_stopped")
    assert refused.headers["retry-after"]
    assert fleet.team.post("/jobs", json={"endpoint": "/v1/completions", "body": body}).is_error
    wait_for(lambda: fleet.overview()["pools"][0]["intake_stopped"], "the overview shows it")
    found = fleet.overview()
    assert found["verdict"]["problems"][0]["action"]["path"] == f"{path}/resume"
    assert fleet.operator.post(f"{path}/resume").status_code == 200
    assert fleet.team.post("/v1/completions", json=body).status_code == 200


def test_tenants(fleet: Fleet) -> None:
    fleet.ended(fleet.submit(3))
    found = fleet.operator.get("/admin/tenants")
    check(fleet, "get", "/admin/tenants", found.json())
    assert "s3cret" not in found.text
    rows = {row["tenant"]: row for row in found.json()["data"]}
    assert (rows["ops"]["operator"], rows["team"]["operator"]) == (True, False)
    assert rows["ops"]["used"] == {"tokens_today": 0, "tokens_this_month": 0}
    assert rows["team"]["jobs_kept"] >= 1
    assert rows["team"]["conversations_kept"] == 0
    assert rows["ops"]["bytes_kept"] == 0 <= rows["team"]["bytes_kept"]


def test_a_drained_worker_ends_and_is_not_lost(fleet: Fleet) -> None:
    fleet.workers["w-3"] = worker = fleet.worker("w-3")
    wait_for(lambda: "w-3" in str(fleet.overview()["workers"]), "it is known")
    answer = fleet.operator.post("/admin/workers/w-3/drain", json={"reason": "new driver"})
    assert answer.status_code == 200, answer.text
    check(fleet, "post", "/admin/workers/{worker}/drain", answer.json())
    assert answer.json()["workers"][0]["answer"]["status"] == "draining"
    wait_for(lambda: worker.popen.poll() is not None, "it has ended")
    assert worker.popen.poll() == 0

    def gone() -> bool:
        found = fleet.overview()
        return "w-3" not in [each["id"] for each in found["workers"]]

    wait_for(gone, "it is not shown any more")
    assert fleet.overview()["verdict"]["level"] == "ok"
    unknown = fleet.operator.post("/admin/workers/w-9/drain")
    assert unknown.status_code == 404
    assert "w-1" in unknown.json()["error"]["message"]
    assert fleet.operator.post("/admin/workers/w-1/drain", json={"x": 1}).status_code == 400


def test_a_killed_worker_is_named_until_another_takes_its_place(fleet: Fleet) -> None:
    jobs = [fleet.submit(ENDLESS, metadata={"run": "kill"}) for _ in range(4)]
    wait_for(lambda: len(fleet.ids("worker:w-2 state:in_progress")) == 2, "w-2 has jobs")
    fleet.workers["w-2"].kill()

    def lost() -> dict[str, Any] | None:
        found = fleet.overview()
        kinds = {problem["kind"] for problem in found["verdict"]["problems"]}
        return found if "worker_lost" in kinds else None

    found = wait_for(lost, "it is lost")
    assert found is not None
    assert found["verdict"]["level"] == "problem"
    problem = next(p for p in found["verdict"]["problems"] if p["kind"] == "worker_lost")
    assert problem["worker"] == "w-2"
    assert "w-2 was lost" in problem["sentence"]
    (shown,) = [worker for worker in found["workers"] if worker["id"] == "w-2"]
    assert (shown["lost"], shown["state"], shown["jobs"]) == (True, "lost", [])
    moved = fleet.ids("worker:w-2 metadata.run:kill")
    assert len(moved) == 2
    assert set(moved) < set(jobs)
    taken = fleet.team.get(f"/jobs/{moved[0]}/timeline").json()
    assert "was lost" in str([event["text"] for event in taken["events"]])
    fleet.workers["w-2"] = fleet.worker("w-4")
    wait_for(
        lambda: "worker_lost" not in str(fleet.overview()["verdict"]["problems"]), "it is replaced"
    )
    recovered = fleet.overview()["verdict"]["recovered"]
    assert "worker_lost" in [each["kind"] for each in recovered]
    fleet.cancel_all()


def test_an_overview_that_cannot_be_made_is_an_error(
    fleet: Fleet, redis_server: RedisServer
) -> None:
    assert fleet.operator.post(f"/admin/pools/{POOL}/pause", json={}).is_success
    job = fleet.submit()

    def failed() -> httpx.Response | None:
        answer = fleet.operator.get("/admin/overview")
        return answer if answer.is_error else None

    with redis_server.client() as redis:
        names = [
            name for name in redis.scan_iter("*waiting*", _type="zset") if redis.zscore(name, job)
        ]
        for name in names:
            redis.rename(name, f"kept {name.decode()}")
            redis.set(name, "no sorted set")
        answer = wait_for(failed, "it is an error")
        assert answer is not None
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "overview_failed")
        assert answer.headers["retry-after"]
        for name in names:
            redis.rename(f"kept {name.decode()}", name)
    wait_for(lambda: not failed(), "it is an answer again")
    assert fleet.operator.post(f"/admin/pools/{POOL}/resume").is_success
    fleet.cancel_all()

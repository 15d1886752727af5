"""`flotilla workers`, `queue`, `scale`, `keys`."""

from __future__ import annotations

import json

import pytest

from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import LOST, job, jobs, overview, worker
from tests.unit.gateway.cli.stub import StubGateway, error


def test_workers_lists_the_unhealthy_ones_first(flotilla: Flotilla, stub: StubGateway) -> None:
    lost = worker("w-3", lost=True, state="lost", heartbeat_age_s=42.0)
    starting = worker("w-4", state="starting", phase="loading weights", phase_s=41.0, kv_use=None)
    workers = [worker(), lost, starting]
    stub.answers["GET /admin/overview"] = overview(LOST, workers=workers)
    lines = flotilla("workers", "ls").stdout.splitlines()
    assert lines[0] == f"{LOST['sentence']} Start it again."
    assert [line.split()[0] for line in lines[1:]] == ["WORKER", "w-3", "w-4", "w-1"]
    assert lines[2].split()[:5] == ["w-3", "lost", f"|{16 * 'x'}|", "40/64", "61%"]
    assert lines[3].endswith("loading weights 41 s")
    assert flotilla("workers", "ls", "--pool", "other").stdout.endswith("There is no worker.\n")
    body = json.loads(flotilla("workers", "ls", "--json").stdout)
    assert [row["id"] for row in body["data"]] == ["w-1", "w-3", "w-4"]
    assert body["problems"] == [LOST]


def test_drain(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["POST /admin/workers/w-1/drain"] = {"object": "operation", "outcome": "done"}
    stub.answers["GET /admin/overview"] = [overview(), overview(workers=[worker("w-2")])]
    result = flotilla("workers", "drain", "w-1", "--wait", "30", "--reason", "update")
    assert (result.exit_code, result.stdout) == (0, "w-1: draining\n")
    assert result.stderr == "all have ended\n"
    assert stub.requests[0].body == {"reason": "update"}
    stub.answers["POST /admin/workers/w-9/drain"] = error(
        "There is no worker 'w-9'.", 404, "not_found"
    )
    assert flotilla("workers", "drain", "w-9").exit_code == 3


def test_pause_and_resume(flotilla: Flotilla, stub: StubGateway) -> None:
    done = {"object": "operation", "pool": "qwen", "outcome": "done", "workers": []}
    stub.answers["GET /admin/pools"] = {"data": [{"id": "qwen"}]}
    stub.answers["POST /admin/pools/qwen/pause"] = done
    stub.answers["POST /admin/pools/qwen/resume"] = done
    result = flotilla("queue", "pause", "--intake", "--reason", "full")
    assert (result.exit_code, result.stdout) == (0, "qwen: pause done\n")
    assert result.stderr == "New requests are refused, until `flotilla queue resume`.\n"
    assert stub.requests[-1].body == {"intake": True, "reason": "full"}
    assert flotilla("queue", "resume", "qwen").stdout == "qwen: resume done\n"
    stub.answers["GET /admin/pools"] = {"data": [{"id": "a"}, {"id": "b"}]}
    result = flotilla("queue", "pause")
    assert (result.exit_code, result.stderr) == (2, "flotilla: name a pool: a, b\n")


def test_scale_set(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["PUT /admin/autoscale/org/qwen"] = {"pool": "qwen", "min": 2, "max": 4}
    shown = flotilla("scale", "set", "org/qwen", "--min", "2")
    assert (shown.exit_code, shown.stdout) == (0, "qwen: 2 to 4 workers\n")
    assert stub.requests[-1].path == "/admin/autoscale/org/qwen?min=2"
    assert flotilla("scale", "set", "qwen").exit_code == 2


API_KEY = {
    "id": "key_1", "object": "api_key", "name": "ci", "tenant": "team", "scopes": ["infer"],
    "models": [], "hint": "flk_AbCd", "created_at": 0, "created_by": "ops", "expires_at": None,
}  # fmt: skip


def test_keys(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /admin/keys"] = {"object": "list", "data": [API_KEY], "has_more": False}
    shown = flotilla("keys", "ls").stdout
    words = shown.splitlines()[1].split()
    assert words[:6] == ["key_1", "team", "ci", "flk_AbCd", "infer", "any"]
    assert flotilla("keys").stdout == flotilla("keys", "list").stdout == shown
    assert flotilla("keys", "--json").stdout == flotilla("keys", "ls", "--json").stdout
    made = API_KEY | {"secret": "flk_AbCdEf"}
    stub.answers["POST /admin/keys"] = stub.answers["POST /admin/keys/key_1/rotate"] = made
    created = flotilla("keys", "create", "team", "--scope", "infer", "--model", "m", "--days", "1")
    assert created.stdout == flotilla("keys", "rotate", "key_1").stdout == "key_1\nflk_AbCdEf\n"
    stub.answers["DELETE /admin/keys/key_1"] = {"id": "key_1", "revoked": True}
    assert flotilla("keys", "revoke", "key_1", "--reason", "left").stdout == "key_1: revoked\n"


def test_keys_have_limits(flotilla: Flotilla, stub: StubGateway) -> None:
    limits = {"requests_per_minute": 60, "tokens_per_day": 0}
    stub.answers["PUT /admin/keys/key_1/limits"] = API_KEY | {"limits": limits}
    page = {"object": "list", "data": [API_KEY | {"limits": limits}], "has_more": False}
    stub.answers["GET /admin/keys"] = page
    shown = flotilla("keys", "limit", "key_1", "--requests-per-minute", "60").stdout
    assert shown == "key_1: 60 requests/min\n"
    assert flotilla("keys", "limit", "team").exit_code == 2
    assert flotilla("keys", "limit", "team", "--tokens-per-day", "-1").exit_code == 2


@pytest.mark.parametrize(
    ("incomplete", "expected"), [("", ["job_1", "other"]), ("job", ["job_1"]), ("x", [])]
)
def test_completion(
    flotilla: Flotilla, stub: StubGateway, incomplete: str, expected: list[str]
) -> None:
    from gateway.cli import completion

    stub.answers["GET /jobs"] = jobs(job(), job("other"))
    assert completion.job_ids(incomplete) == expected
    stub.close()
    assert completion.job_ids(incomplete) == []

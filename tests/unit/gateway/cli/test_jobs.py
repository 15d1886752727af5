"""`flotilla jobs` and `flotilla submit`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gateway.cli.gateway_client import GatewayClient
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import WHY, job, jobs
from tests.unit.gateway.cli.stub import Answer, StubGateway, error, events


def test_ls_sends_the_filter_and_reads_as_many_pages_as_it_takes(
    flotilla: Flotilla, stub: StubGateway
) -> None:
    failed = job("job_2", state="failed", error={"code": "worker_lost", "message": "lost"})
    stub.answers["GET /jobs"] = [jobs(*[job()] * 100, cursor="7"), jobs(failed)]
    result = flotilla("jobs", "ls", "state:failed,completed", "since:1h", "-n", "120")
    assert result.exit_code == 0
    head, *rows = result.stdout.splitlines()
    assert head.split() == [
        "JOB", "STATE", "MODEL", "LANE", "AGE", "WAIT", "TOKENS", "TRY", "WORKER", "ERROR"
    ]  # fmt: skip
    assert len(rows) == 101
    assert rows[0].split()[:4] == ["job_1", "completed", "qwen", "default"]
    assert rows[0].split()[-5:] == ["0.5", "s", "21", "1", "w-1"]
    assert rows[-1].split()[-1] == "worker_lost"
    first, second = (request.path for request in stub.requests)
    assert first == "/jobs?filter=state%3Afailed%2Ccompleted+since%3A1h&limit=100"
    assert second.endswith("&limit=20&cursor=7")


def test_ls_of_several_tenants_names_them(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /jobs"] = jobs(job(tenant="a"), job(tenant="b"))
    head, *rows = flotilla("jobs", "ls", "tenant:*").stdout.splitlines()
    assert head.split()[-2:] == ["TENANT", "ERROR"]
    assert [row.split()[-1] for row in rows] == ["a", "b"]


def test_ctrl_c_leaves_a_sentence(
    flotilla: Flotilla, stub: StubGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(GatewayClient, "follow", interrupted)
    stub.answers["POST /jobs"] = Answer(job(state="queued"), 202)
    result = flotilla("submit", "hello", "--follow")
    assert result.exit_code == 130
    assert "Interrupted. job_1 goes on; `flotilla jobs follow job_1`" in result.stderr


def test_an_operator_sees_the_jobs_of_others(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers |= {"GET /jobs/job_1/why": error("no such job", 404, "not_found")}
    stub.answers |= {"GET /admin/jobs/job_1/why": WHY}
    assert flotilla("jobs", "why", "job_1").exit_code == 0


def test_follow_prints_text_as_it_comes(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /jobs/job_1/events"] = events(
        ("queued", {"state": "queued", "position": 3}),
        ("in_progress", {"state": "in_progress"}),
        ("delta", {"choices": [{"index": 0, "text": "Hello "}]}),
        ("chunk", {"choices": [{"index": 0, "delta": {"content": "there"}}]}),
        ("completed", job()),
    )
    result = flotilla("jobs", "follow", "job_1")
    assert (result.exit_code, result.stdout) == (0, "Hello there\n")
    assert result.stderr.splitlines() == ["queued, position 3", "a worker runs it", "completed"]
    lines = flotilla("jobs", "follow", "job_1", "--json").stdout.splitlines()
    assert [json.loads(line)["event"] for line in lines][-1] == "completed"
    flotilla("jobs", "follow", "job_1", "--from", "3.1", "--raw-events")
    assert stub.requests[-1].headers["last-event-id"] == "3.1"


def test_follow_goes_on_after_an_interrupted_stream(flotilla: Flotilla, stub: StubGateway) -> None:
    stopped = {"error": {"message": "stopped", "code": "gateway_stopped"}}
    delta = ("delta", {"choices": [{"index": 0, "text": "Hello "}]})
    stub.answers["GET /jobs/job_1"] = job(state="in_progress")
    stub.answers["GET /jobs/job_1/events"] = [
        events(("in_progress", {}), delta, ("error", stopped)),
        events(("in_progress", {}), delta),
        events(("completed", job())),
    ]
    result = flotilla("jobs", "follow", "job_1")
    assert (result.exit_code, result.stdout) == (0, "Hello Hello \n")
    sent = [each for each in stub.requests if each.path.endswith("/events")]
    assert [each.headers.get("last-event-id") for each in sent] == [None, "2", "1"]


def test_the_end_is_found_if_nothing_follows(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /jobs/job_1/events"] = Answer(b"", 204)
    stub.answers["GET /jobs/job_1"] = job(state="failed")
    assert flotilla("jobs", "follow", "job_1", "--from", "9").exit_code == 1


def test_result(flotilla: Flotilla, stub: StubGateway) -> None:
    body = {"choices": [{"message": {"content": "Hello there"}}]}
    stub.answers["GET /jobs/job_1/result"] = body
    assert flotilla("jobs", "result", "job_1").stdout == "Hello there\n"
    assert json.loads(flotilla("jobs", "result", "job_1", "--json").stdout) == body
    stub.answers["GET /jobs/job_1/result"] = Answer(job(state="queued"), 202)
    result = flotilla("jobs", "result", "job_1")
    assert result.exit_code == 6
    assert "`flotilla jobs why job_1` explains it" in result.stderr


def test_cancel_and_retry_by_id(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["POST /jobs/job_1/cancel"] = job(state="cancelled")
    stub.answers["POST /jobs/job_1/retry"] = Answer(job("job_9", state="queued"), 202)
    stub.answers["POST /jobs/job_2/cancel"] = error("no such job", 404, "not_found")
    stub.answers["POST /admin/jobs/cancel"] = {"matched": 0, "done": 0, "ids": []}
    assert flotilla("jobs", "cancel", "job_1").stdout == "job_1: cancelled\n"
    assert flotilla("jobs", "retry", "job_1").stdout == "job_1: queued as job_9\n"
    assert flotilla("jobs", "cancel", "job_2").exit_code == 3
    result = flotilla("jobs", "cancel", "job_1", "job_2")
    assert (result.exit_code, result.stderr) == (7, "flotilla: job_2: no such job\n")


def test_an_operator_cancels_the_jobs_of_others(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["POST /jobs/job_2/cancel"] = error("no such job", 404, "not_found")
    stub.answers["POST /admin/jobs/cancel"] = {"matched": 1, "done": 1, "ids": ["job_2"]}
    assert flotilla("jobs", "cancel", "job_2").stdout == "job_2: cancel done\n"
    assert stub.requests[-1].body == {"filter": "tenant:* id:job_2", "dry_run": False}
    stub.answers["POST /jobs/job_%2A/cancel"] = error("no such job", 404, "not_found")
    assert flotilla("jobs", "cancel", "job_*").exit_code == 3
    assert stub.requests[-1].path == "/jobs/job_%2A/cancel"


def test_retry_with_another_body(flotilla: Flotilla, stub: StubGateway, folder: Path) -> None:
    stub.answers["POST /jobs/job_1/retry"] = Answer(job("job_9", state="queued"), 202)
    (folder / "body.json").write_text('{"prompt": "better"}')
    assert flotilla("jobs", "retry", "job_1", "--body", "body.json").exit_code == 0
    assert stub.requests[-1].body == {"body": {"prompt": "better"}}
    assert flotilla("jobs", "retry", "job_1", "job_2", "--body", "body.json").exit_code == 2
    assert flotilla("jobs", "retry", "job_1", "--body", "missing").exit_code == 2


def test_by_filter_with_preview(flotilla: Flotilla, stub: StubGateway) -> None:
    preview = {
        "matched": 2, "done": 0, "skipped": 0, "more": False, "next_cursor": None,
        "ids": ["job_1", "job_2"],
    }  # fmt: skip
    path = "POST /admin/jobs/retry"
    stub.answers[path] = preview
    result = flotilla("jobs", "retry", "--filter", "state:failed", "--dry-run")
    assert result.stdout == "retry would change 2 jobs\n  job_1\n  job_2\n"
    assert flotilla("jobs", "retry", "--filter", "state:failed").exit_code == 2  # can't ask
    assert [body["dry_run"] for _, body in stub.sent()] == [True, True]
    stub.answers[path] = [
        preview,
        preview | {"done": 2, "more": True, "next_cursor": "77"},
        preview | {"matched": 1, "done": 0, "skipped": 1, "ids": []},
    ]
    result = flotilla("jobs", "retry", "-f", "state:failed", "--yes", "--reason", "fixed")
    assert result.exit_code == 0
    assert result.stdout.startswith("retry: 2 of 3 jobs, 1 could not be")
    assert stub.requests[-1].body == {
        "filter": "state:failed", "reason": "fixed", "dry_run": False, "cursor": "77"
    }  # fmt: skip


def test_either_jobs_or_a_filter(flotilla: Flotilla) -> None:
    assert flotilla("jobs", "cancel").exit_code == 2
    assert flotilla("jobs", "cancel", "job_1", "--filter", "state:queued").exit_code == 2


def test_submit(flotilla: Flotilla, stub: StubGateway, folder: Path) -> None:
    stub.answers["POST /jobs"] = Answer(job(state="queued", position=3), 202)
    result = flotilla(
        "submit", "write a haiku", "-m", "qwen", "--lane", "flex", "--meta", "team=search",
        "--idempotency-key", "k", "--deadline", "60", "--max-wait", "5",
    )  # fmt: skip
    assert (result.exit_code, result.stdout) == (0, "job_1\n")
    assert result.stderr == "queued, position 3; flotilla jobs follow job_1\n"
    request = stub.requests[-1]
    assert request.headers["idempotency-key"] == "k"
    assert request.body == {
        "endpoint": "/v1/chat/completions",
        "body": {"messages": [{"role": "user", "content": "write a haiku"}], "model": "qwen"},
        "lane": "flex",
        "deadline_s": 60.0,
        "max_wait_s": 5.0,
        "metadata": {"team": "search"},
    }
    flotilla("submit", "-", stdin="from stdin")
    assert stub.requests[-1].body["body"]["messages"][0]["content"] == "from stdin"
    (folder / "body.json").write_text('{"input": "x"}')
    flotilla("submit", "-f", "body.json", "--endpoint", "/v1/embeddings")
    assert stub.requests[-1].body["body"] == {"input": "x"}


@pytest.mark.parametrize(
    "arguments", [[], ["x", "-f", "y"], ["-f", "missing"], ["x", "--meta", "novalue"]]
)
def test_wrong_submits(flotilla: Flotilla, arguments: list[str]) -> None:
    assert flotilla("submit", *arguments).exit_code == 2

"""Which gateway a command calls, with which key, and how it ends if that fails."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gateway.cli.exit_codes import CommandError, ExitCode
from gateway.cli.gateway_client import DEFAULT_URL, address
from gateway.launcher import run_file
from tests.harness.servers import free_port
from tests.unit.gateway.cli.conftest import Flotilla
from tests.unit.gateway.cli.samples import job, jobs
from tests.unit.gateway.cli.stub import Answer, StubGateway, error


def test_the_order_in_which_a_gateway_is_found(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert address().url == DEFAULT_URL
    (folder / ".flotilla").mkdir()
    run = folder / ".flotilla"
    with run_file.written(run, redis_url="redis://r", gateway_url="http://here:1"):
        assert address().url == "http://here:1"
        monkeypatch.setenv("FLOTILLA_URL", "http://variable:2/")
        assert address().url == "http://variable:2"
        assert address("http://flag:3/v1").url == "http://flag:3"


def test_the_key(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert address().headers == {}
    monkeypatch.setenv("FLOTILLA_API_KEY", "variable")
    assert address().headers == {"authorization": "Bearer variable"}
    file = folder / "key"
    file.write_text("file\nanother\n")
    assert address(None, file).headers == {"authorization": "Bearer file"}
    file.write_text("sch\u00f6n")
    with pytest.raises(CommandError) as caught:
        address(None, file)
    assert caught.value.code is ExitCode.USAGE
    with pytest.raises(CommandError):
        address(None, folder / "missing")


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}', '{"pid": "1", "redis_url": "x"}'])
def test_an_unusable_run_file(folder: Path, text: str) -> None:
    run = folder / ".flotilla"
    run.mkdir()
    with run_file.written(run, redis_url="redis://r", gateway_url="http://here:1"):
        (run / "run.json").write_text(text)
        assert address().url == DEFAULT_URL


def test_a_run_file_whose_process_id_is_another_processs_by_now(folder: Path) -> None:
    run = folder / ".flotilla"
    run.mkdir()
    with run_file.written(run, redis_url="redis://r", gateway_url="http://here:1"):
        left = (run / "run.json").read_text()
    assert json.loads(left)["pid"] == os.getpid()
    (run / "run.json").write_text(left)  # as after a kill -9
    assert address().url == DEFAULT_URL
    with run_file.written(run, redis_url="redis://r", gateway_url="http://here:2"):
        assert address().url == "http://here:2"
        assert (run / "run.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("status", "code"),
    [
        (400, 2),
        (401, 4),
        (403, 4),
        (404, 3),
        (409, 4),
        (422, 2),
        (429, 4),
        (500, 1),
        (503, 4),
        (504, 6),
    ],
)
def test_an_error_has_an_exit_code_and_one_line(
    flotilla: Flotilla, stub: StubGateway, status: int, code: int
) -> None:
    stub.answers["GET /jobs/job_1"] = error("It is so.", status, "some_code")
    if status == 404:
        stub.answers["GET /admin/jobs/job_1"] = error("Not here either.", 403)
    result = flotilla("jobs", "show", "job_1")
    assert (result.exit_code, result.stderr) == (code, "flotilla: It is so.\n")
    result = flotilla("jobs", "show", "job_1", "--json")
    assert result.exit_code == code
    assert '"some_code"' in result.stderr
    assert result.stdout == ""


def test_an_answer_of_a_proxy(flotilla: Flotilla, stub: StubGateway) -> None:
    stub.answers["GET /jobs"] = Answer(b"<html>", 502, "text/html")
    result = flotilla("jobs", "ls")
    assert result.exit_code == 1
    assert "status 502" in result.stderr
    stub.answers["GET /jobs"] = Answer(b"<html>", 200, "text/html")
    assert "something else than JSON" in flotilla("jobs", "ls").stderr


def test_no_gateway(flotilla: Flotilla) -> None:
    result = flotilla("jobs", "ls", "--url", f"http://127.0.0.1:{free_port()}")
    assert result.exit_code == 5
    assert result.stderr.startswith("flotilla: no gateway answers at http://127.0.0.1:")
    assert "`flotilla up`, or name another with --url" in result.stderr


def test_wrong_addresses_and_settings(flotilla: Flotilla, monkeypatch: pytest.MonkeyPatch) -> None:
    assert flotilla("jobs", "ls", "--url", "localhost:8000").exit_code == 2
    monkeypatch.setenv("FLOTILLA_URLL", "x")
    result = flotilla("jobs", "ls")
    assert result.exit_code == 2
    assert "did you mean FLOTILLA_URL?" in result.stderr


CONTROLS = set("\x1b\x9b\u202e\u2066")
HOSTILE = "\x1b[2J\x9b2J\u202e\u2066evil"


def test_json_means_the_same_and_controls_no_terminal(
    flotilla: Flotilla, stub: StubGateway
) -> None:
    stub.answers["GET /jobs"] = jobs(job(model=HOSTILE))
    shown = flotilla("jobs", "ls", "--json").stdout
    assert not CONTROLS & set(shown)
    assert json.loads(shown)["data"][0]["model"] == HOSTILE


@pytest.mark.parametrize("options", [[], ["--json"]])
@pytest.mark.parametrize("media_type", ["application/json", "text/plain"])
def test_nor_does_an_answer_of_any_endpoint(
    flotilla: Flotilla, stub: StubGateway, options: list[str], media_type: str
) -> None:
    answer = json.dumps({"text": HOSTILE}, ensure_ascii=False).encode()
    stub.answers["GET /jobs/job_1"] = Answer(job("job_1", finished_at=1.0))
    stub.answers["GET /jobs/job_1/result"] = Answer(answer, content_type=media_type)
    result = flotilla("jobs", "result", "job_1", *options)
    assert "evil" in result.stdout
    assert not CONTROLS & set(result.stdout)


def test_text_of_clients_does_not_reach_the_terminal_as_it_is(
    flotilla: Flotilla, stub: StubGateway
) -> None:
    stub.answers["GET /jobs"] = jobs(job(model="\x1b[2Jevil\nline"))
    shown = flotilla("jobs", "ls").stdout
    assert "\x1b" not in shown
    assert "evil line" in shown

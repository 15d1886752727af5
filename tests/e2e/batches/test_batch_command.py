"""`flotilla batch run` against a whole fleet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.harness.fleet import Process
from tests.harness.waiting import wait_for

Flotilla = Callable[..., Result]
GATEWAY: dict[str, str] = {}
RUN = ("batch", "run", "in.jsonl", "-o", "out.jsonl", "--in-order")


@pytest.fixture
def flotilla(fleet: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FLOTILLA_URL", fleet.url)

    def run(*arguments: str, code: int = 0) -> Result:
        result = CliRunner().invoke(app, list(arguments))
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, (result.stdout, result.stderr)
        return result

    return run


def ids(path: Path) -> list[str]:
    return [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]


def test_bodies_are_answered_in_order(flotilla: Flotilla, tmp_path: Path) -> None:
    bodies = [
        {"prompt": f"number {n}", "max_tokens": -1 if n == 7 else 2 + n % 5} for n in range(1, 201)
    ]
    (tmp_path / "in.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in bodies))
    shown = flotilla(*RUN, "--endpoint", "/v1/completions", "--model", "simulated", code=7)
    assert "completed: 199 lines answered, 1 failed" in shown.stdout
    assert ids(tmp_path / "out.jsonl") == [str(n) for n in range(1, 201) if n != 7]
    assert ids(tmp_path / "out.errors.jsonl") == ["7"]
    again = ("--endpoint", "/v1/completions", "--model", "simulated", "--retry-failed")
    flotilla(*RUN, *again, code=7)
    assert ids(tmp_path / "out.errors.jsonl") == ["7"]
    assert len(ids(tmp_path / "out.jsonl")) == 199
    listed = flotilla("batch", "ls", "--json").stdout
    assert [each["request_counts"]["total"] for each in json.loads(listed)["data"]] == [1, 200]
    assert len(flotilla("files", "ls", "-n", "100").stdout.splitlines()) == 1 + 2 + 3


def test_detach_look_cancel_and_fetch(flotilla: Flotilla, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 8000, "ignore_eos": True}
    (tmp_path / "in.jsonl").write_text(f"{json.dumps(body)}\n" * 3)
    batch = flotilla(*RUN, "--detach").stdout.strip()
    assert batch in flotilla("batch", "ls").stdout
    wait_for(lambda: "in_progress" in flotilla("batch", "ls").stdout, "it is checked")
    flotilla("batch", "fetch", batch, "-o", "so-far.jsonl")
    assert (tmp_path / "so-far.jsonl").read_text() == ""
    assert flotilla("batch", "cancel", batch).stdout.startswith(f"{batch}: cancel")
    shown = flotilla(*RUN, code=7)
    assert "cancelled: 0 lines answered, 3 failed" in shown.stdout
    assert ids(tmp_path / "out.errors.jsonl") == ["1", "2", "3"]
    flotilla("batch", "cancel", batch)
    flotilla("batch", "show", "batch_none", code=3)
    file = flotilla("files", "put", "in.jsonl").stdout.strip()
    flotilla("files", "get", file, "-o", "copy.jsonl")
    assert (tmp_path / "copy.jsonl").read_bytes() == (tmp_path / "in.jsonl").read_bytes()
    flotilla("files", "rm", file)

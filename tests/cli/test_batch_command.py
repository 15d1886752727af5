"""`flotilla batch run` against a whole fleet."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.fleet import Process, Stack
from tests.harness.waiting import wait_for

Flotilla = Callable[..., Any]
RUN = ("batch", "run", "in.jsonl", "-o", "out.jsonl")


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    storage = str(module_stack.folder / "files")
    module_stack.worker(sim_step_ms=2, sim_step_us_per_seq=0, sim_max_num_seqs=8)
    module_stack.maintenance(storage_url=storage)
    return module_stack.gateway(storage_url=storage)


@pytest.fixture
def flotilla(gateway: Process, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return functools.partial(run_flotilla, environment={"FLOTILLA_URL": gateway.url})


def ids(path: Path) -> list[str]:
    """The ids of a file's lines, which are numbers here."""
    found = [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
    return sorted(found, key=int)


def test_bodies_are_answered(flotilla: Flotilla, tmp_path: Path) -> None:
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

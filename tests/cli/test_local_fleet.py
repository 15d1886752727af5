"""LocalFleet: requests without a server, from Python."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.harness.local_processes import FleetError, LocalFleet, LocalProcesses, SettingsError
from tests.harness.up import children, is_alive
from tests.harness.waiting import wait_for

REFUSED, STREAMED = 7, 9
PROGRAM = """
import itertools
from gateway.offline import LocalFleet

with LocalFleet(engine="simulated") as fleet:
    bodies = ({"prompt": f"{n}", "max_tokens": 5} for n in itertools.count())
    for number, answer in enumerate(fleet.map("/v1/completions", bodies)):
        print(number, flush=True)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the fleet that most tests share."""
    return tmp_path_factory.mktemp("local")


@pytest.fixture(scope="module")
def fleet(folder: Path) -> Iterator[LocalFleet]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FLOTILLA_SIM_STEP_MS", "2")
        patch.setenv("FLOTILLA_SIM_MAX_NUM_SEQS", "8")
        patch.setenv("HTTP_PROXY", "http://127.0.0.1:1")
        with LocalFleet(engine="simulated", workers=2, folder=folder) as started:
            yield started
        assert (folder / "logs" / "gateway.log").exists()


def body(number: int) -> dict[str, Any]:
    fields: dict[str, Any] = {"prompt": f"prompt {number}", "max_tokens": 3 + number % 5}
    if number == REFUSED:
        fields["max_tokens"] = -1
    if number == STREAMED:
        fields["stream"] = True
    return fields


def test_endless_requests_are_answered_in_order_and_read_lazily(fleet: LocalFleet) -> None:
    read = 0

    def bodies() -> Iterator[dict[str, Any]]:
        nonlocal read
        for read in itertools.count(1):
            yield body(read - 1)

    answers = fleet.map("/v1/completions", bodies(), window=20)
    assert read == 0
    for number, answer in enumerate(itertools.islice(answers, 100)):
        assert read <= number + 1 + 20
        if number in (REFUSED, STREAMED):
            assert set(answer["error"]) == {"message", "type", "param", "code"}
        else:
            assert answer["model"] == fleet.model == "simulated"
            assert answer["usage"]["completion_tokens"] <= 3 + number % 5
    answers.close()
    assert next(answers, None) is None


def test_closing_cancels_what_is_in_flight(fleet: LocalFleet) -> None:
    long = {"prompt": "x", "ignore_eos": True, "max_tokens": 8000}
    answers = fleet.map("/v1/completions", [body(0), *[long] * 30])
    assert "choices" in next(answers)
    answers.close()
    headers = {"authorization": f"Bearer {fleet.api_key}"}

    def ended() -> bool:
        query = {"filter": "state:queued,in_progress"}
        jobs = httpx.get(f"{fleet.url}/jobs", params=query, headers=headers, trust_env=False)
        return not jobs.json()["data"]

    wait_for(ended, "no job is left")


def test_lost_processes_are_no_errors(fleet: LocalFleet) -> None:
    """A worker is killed in the middle, then the gateway."""
    bodies = [{**body(n + 10), "ignore_eos": True, "max_tokens": 100} for n in range(120)]
    answers = fleet.map("/v1/completions", bodies)
    got = [next(answers)]
    for module in ("worker", "gateway"):
        os.kill(process(module), signal.SIGKILL)
        got += itertools.islice(answers, 20)
    got += answers
    tokens = [each.get("usage", each)["completion_tokens"] for each in got]
    assert tokens == [100] * 120


def process(module: str) -> int:
    """A process of the fleet, which this one has started."""
    for pid in children(os.getpid()):
        if Path(f"/proc/{pid}/cmdline").read_bytes().endswith(f"\0-m\0{module}\0".encode()):
            return pid
    raise AssertionError(f"{module} does not run")


def test_other_endpoints_and_wrong_ones(fleet: LocalFleet) -> None:
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 2}
    (answer,) = fleet.map("/v1/chat/completions", [chat])
    assert answer["choices"][0]["message"]["role"] == "assistant"
    (answer,) = fleet.map("/v1/nothing", [chat])
    assert answer["error"]["code"] == "unknown_route"
    (answer,) = fleet.map("/v1/completions", [{"model": "other", "prompt": "x"}])
    assert answer["error"]["code"] == "model_not_found"
    assert not list(fleet.map("/v1/completions", []))
    with pytest.raises(ValueError, match="window"):
        fleet.map("/v1/completions", [], window=0)


@pytest.mark.usefixtures("fleet")
def test_a_folder_has_one_fleet(folder: Path) -> None:
    with (
        pytest.raises(FleetError, match=f"in use by another process, pid {os.getpid()}"),
        LocalFleet(engine="simulated", folder=folder),
    ):
        pass


def test_the_end_of_the_block_is_the_end_of_all(tmp_path: Path) -> None:
    with LocalFleet(engine="simulated", folder=tmp_path) as fleet:
        bodies = (body(n) for n in itertools.count())
        answers = [fleet.map("/v1/completions", bodies, window=window) for window in (None, 1)]
        assert all(map(next, answers))
        pid = json.loads((tmp_path / "run.json").read_text())["pid"]
        pids = [pid, *children(pid)]
    assert len(pids) >= 1 + 4  # Redis, gateway, worker, maintenance; and their children
    assert not any(map(is_alive, pids))
    for rest in answers:
        with pytest.raises(FleetError):
            list(rest)
    with pytest.raises(FleetError):
        fleet.map("/v1/completions", [])


def test_what_is_wrong_is_an_error_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SettingsError, match="engine"):
        LocalFleet(engine="other")
    with pytest.raises(ValueError, match="worker"):
        LocalFleet(workers=0)
    monkeypatch.setenv("FLOTILLA_NO_SUCH_SETTING", "1")
    with pytest.raises(SettingsError, match="FLOTILLA_NO_SUCH_SETTING"):
        LocalFleet(engine="simulated")


def test_a_killed_program_leaves_nothing(local: LocalProcesses) -> None:
    program = local.start(sys.executable, "-c", PROGRAM)
    wait_for(lambda: "20\n" in local.text() or program.poll() is not None, "requests are answered")
    program.kill()
    program.wait()
    local.wait_for_end()

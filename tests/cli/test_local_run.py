"""`flotilla batch run --local`: no server; killed in the middle, the same command goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.harness.local_processes import FLOTILLA, LocalProcesses
from tests.harness.up import is_alive
from tests.harness.waiting import wait_for

RUN = (
    FLOTILLA, "batch", "run", "in.jsonl", "-o", "out.jsonl", "--endpoint", "/v1/completions",
    "--local", "--engine", "simulated", "--json",
)  # fmt: skip


def write_input(folder: Path, count: int, max_tokens: int, refused: int = 0) -> list[str]:
    """Bodies, of which one may be refused; returns the ids of all."""
    numbers = range(1, count + 1)
    bodies: list[dict[str, Any]] = [
        {"prompt": f"{n}", "ignore_eos": True, "max_tokens": -1 if n == refused else max_tokens}
        for n in numbers
    ]
    (folder / "in.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in bodies))
    return [str(n) for n in numbers]


def ids(path: Path) -> list[str]:
    """The ids of a file's lines, which are numbers here."""
    found = [json.loads(line)["custom_id"] for line in path.read_text().splitlines()]
    return sorted(found, key=int)


def completed(local: LocalProcesses) -> int:
    events = local.events()
    return int(events[-1]["request_counts"]["completed"]) if events else 0


def wait_for_lines(local: LocalProcesses, command: subprocess.Popen[bytes], done: int = 0) -> None:
    """More than `done` are answered, or the command has ended."""
    wait_for(lambda: completed(local) > done or command.poll() is not None, "lines are answered")


def test_a_run_without_a_server(local: LocalProcesses) -> None:
    folder = local.folder
    every = write_input(folder, 150, 5, refused=7)
    local.wait(local.start(*RUN, "--workers", "2"), 7)
    local.wait_for_end()
    every.remove("7")
    assert ids(folder / "out.jsonl") == every
    assert ids(folder / "out.errors.jsonl") == ["7"]
    data = folder / "out.jsonl.flotilla"
    assert (data / "logs" / "worker-2.log").exists()
    assert not [name for name in ("redis", "files") if (data / name).exists()]

    local.wait(local.start(*RUN), 7)  # nothing is left to do
    assert local.text().count("starting a fleet") == 1
    local.wait(local.start(*RUN, "--retry-failed"), 7)
    local.wait_for_end()
    assert ids(folder / "out.jsonl") == every
    assert ids(folder / "out.errors.jsonl") == ["7"]


def kill_everything(local: LocalProcesses, command: subprocess.Popen[bytes]) -> None:
    while local.running():
        local.kill()
    command.wait()


def interrupt(local: LocalProcesses, command: subprocess.Popen[bytes]) -> None:
    command.send_signal(signal.SIGINT)
    local.wait(command, 130)
    assert not local.running()
    assert "The same command goes on." in local.text()


def completed_at_start(local: LocalProcesses) -> int:
    """Of the latest run."""
    first = next(each for each in local.events()[::-1] if each["lines_per_s"] is None)
    return int(first["request_counts"]["completed"])


def test_an_ended_run_goes_on(local: LocalProcesses) -> None:
    every = write_input(local.folder, 240, 20)
    done = 0
    for end in (kill_everything, interrupt):
        command = local.start(*RUN)
        wait_for_lines(local, command, done)
        end(local, command)
        assert done < completed(local) < len(every), local.text()
        assert completed_at_start(local) >= done, "they are not run again"
        done = completed(local)

    again = local.start(*RUN)
    local.wait(again, 0)
    local.wait_for_end()
    assert ids(local.folder / "out.jsonl") == every
    assert not (local.folder / "out.jsonl.flotilla").exists()
    assert completed_at_start(local) >= done, "they are not run again"


def test_a_killed_worker_is_no_error(local: LocalProcesses) -> None:
    every = write_input(local.folder, 120, 20)
    command = local.start(*RUN, "--workers", "2")
    wait_for_lines(local, command)
    os.kill(local.worker(), signal.SIGKILL)
    local.wait(command, 0)
    assert ids(local.folder / "out.jsonl") == every


def test_a_second_one_is_refused_and_a_dead_fleet_ends_the_command(local: LocalProcesses) -> None:
    write_input(local.folder, 200, 20)
    command = local.start(*RUN)
    wait_for_lines(local, command)
    local.wait(local.start(*RUN, log="second"), 4)
    assert "another command writes out.jsonl now" in local.text("second")

    fleet = [pid for pid, line in local.running().items() if line.endswith("-m gateway.offline")]
    os.kill(*fleet, signal.SIGKILL)
    local.wait(command, 1)
    assert "the fleet has ended with status -9" in local.text()
    wait_for(lambda: not any(map(is_alive, local.running())), "nothing is left")


def test_workers_that_can_not_start_end_the_command_with_their_last_lines(
    local: LocalProcesses,
) -> None:
    write_input(local.folder, 3, 5)
    arguments = [each for each in RUN if each != "--json"]
    local.wait(local.start(*arguments, sim_faults="no_such_fault=1"), 1)
    local.wait_for_end()
    assert "flotilla: the fleet has ended with status 1" in local.text()
    assert "FLOTILLA_SIM_FAULTS: no_such_fault" in local.text()
    assert (local.folder / "out.jsonl.flotilla" / "logs" / "worker-1.log").exists()


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((*RUN, "--detach"), {}, "--local has no --detach and no --url"),
        ((*RUN, "--url", "http://127.0.0.1:1"), {}, "--local has no --detach and no --url"),
        ((*RUN[:8], "--workers", "2"), {}, "--workers, --engine and --engine-args need --local"),
        (RUN, {"sim_step_ms": "fast"}, "FLOTILLA_SIM_STEP_MS"),
        (RUN, {}, "line 2: invalid_json_line"),
    ],
)
def test_what_is_wrong_is_said_before_anything_starts(
    local: LocalProcesses, arguments: tuple[str, ...], settings: dict[str, str], message: str
) -> None:
    (local.folder / "in.jsonl").write_text('{"prompt": 1}\n')
    if "line" in message:
        (local.folder / "in.jsonl").write_text('{"prompt": 1}\nno json\n')
    local.wait(local.start(*arguments, **settings), 2)
    assert message in " ".join(local.text().replace("│", " ").split())  # it is in a box
    assert not (local.folder / "out.jsonl.flotilla").exists()


def test_data_that_is_gone_is_no_endless_wait(local: LocalProcesses) -> None:
    write_input(local.folder, 3, 5)
    command = local.start(*RUN)
    state = local.folder / "out.jsonl.batch.json"
    wait_for(lambda: state.exists() and "batch_id" in state.read_text(), "it is uploaded")
    kill_everything(local, command)
    shutil.rmtree(local.folder / "out.jsonl.flotilla")
    local.wait(local.start(*RUN), 2)
    assert "is gone: remove out.jsonl.batch.json" in local.text()

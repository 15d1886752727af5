"""The decisions behind `flotilla up`: what it starts again, ports, commands, what it refuses."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import main, processes
from gateway.launcher import ports, preflight
from gateway.launcher.service import Restart, after_end
from gateway.launcher.stalled_workers import StalledWorkers
from gateway.launcher.welcome import PoolLine, welcome
from shared.fleet.pool import DEMO_MODEL
from shared.job.states import WorkerState

runner = CliRunner()


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("FLOTILLA_"):
            monkeypatch.delenv(name)


@pytest.fixture
def listener() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


# status, lived_s, was_ready, ever_ready, failures before -> delay_s, failures after
@pytest.mark.parametrize(
    ("status", "lived_s", "was_ready", "ever_ready", "failures", "delay_s", "failures_after"),
    [
        (1, 5, False, False, 0, 1, 1),
        (1, 5, False, False, 1, 2, 2),
        (1, 5, False, False, 2, None, 3),
        (-9, 500, False, False, 2, None, 3),  # slow to fail is still failing
        (2, 1, False, False, 0, None, 1),  # wrong settings stay wrong
        (2, 1, False, True, 0, 1, 1),  # they were right before
        (0, 90, True, True, 0, 1, 1),  # nobody asked it to end
        (-9, 5, True, True, 3, 8, 4),
        (-9, 5, True, True, 4, 16, 5),
        (-9, 5, True, True, 5, 30, 6),
        (-9, 5, True, True, 5000, 30, 5001),
        (-9, 60, True, True, 7, 1, 1),  # a healthy life clears the record
        (1, 60, False, True, 7, 30, 8),  # an unhealthy one doesn't, however long
    ],
)
def test_after_end(
    status: int,
    lived_s: float,
    was_ready: bool,
    ever_ready: bool,
    failures: int,
    delay_s: float | None,
    failures_after: int,
) -> None:
    restart = after_end(
        status=status,
        lived_s=lived_s,
        was_ready=was_ready,
        ever_ready=ever_ready,
        failures=failures,
    )
    assert restart == Restart(delay_s, failures_after, restart.reason)
    assert restart.reason


def test_a_failure_that_repeats_is_not_tried_again_before_the_first_success() -> None:
    run: dict[str, Any] = {"status": 1, "lived_s": 30, "was_ready": False, "failures": 1}
    assert after_end(**run, ever_ready=False, alike=True).delay_s is None
    assert after_end(**run, ever_ready=True, alike=True).delay_s == 2


def a_welcome(**changes: Any) -> str:
    values: dict[str, Any] = {
        "url": "http://127.0.0.1:8000",
        "model": "it's-a-model",
        "simulated": False,
        "pools": [PoolLine("p", ("it's-a-model",), (2, 2))],
        "logs": Path(".flotilla/logs"),
        "with_key": False,
    }
    return welcome(**values | changes)


def test_welcome_has_a_command_to_paste() -> None:
    text = a_welcome()
    words = shlex.split(text[text.index("curl") : text.index("Ctrl-C")])
    body = json.loads(words[words.index("-d") + 1])
    assert body["model"] == "it's-a-model"
    assert body["stream"] is True
    assert "http://127.0.0.1:8000/v1/chat/completions" in words
    assert "Authorization" not in text
    assert "SIMULATED" not in text


def test_ports(listener: int) -> None:
    problem = ports.listen_problem("127.0.0.1", listener)
    assert problem is not None
    assert problem.strerror == "Address already in use"
    free = ports.free_port("127.0.0.1", listener)
    assert free > listener
    assert ports.free_port("127.0.0.1", listener, [free]) > free
    assert ports.free_port("127.0.0.1") > 0
    assert ports.listen_problem("no.such.host.invalid", 80) is not None


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:1"),
        ("0.0.0.0", "http://127.0.0.1:1"),
        ("::", "http://[::1]:1"),
        ("fleet.local", "http://fleet.local:1"),
    ],
)
def test_url_of(host: str, url: str) -> None:
    assert ports.url_of(host, 1) == url


@pytest.mark.parametrize(
    ("arguments", "environment", "line"),
    [
        (["up", "--engine", "magic"], {}, "--engine magic: Input should be"),
        (["up", "--port", "99999"], {}, "--port 99999: Input should be less than or equal to"),
        (["gateway", "--redis-url", "foo"], {}, "--redis-url foo: must start with redis://, re"),
        (["gateway"], {"FLOTILLA_REDIS_URL": "foo"}, "FLOTILLA_REDIS_URL='foo': must start with"),
        (["gateway"], {"FLOTILLA_REDIS_URL": "u:p@h"}, "FLOTILLA_REDIS_URL: must start with"),
        (["gateway", "--redis-url", "h?password=p"], {}, "--redis-url: must start with"),
        (["gateway"], {"FLOTILLA_PORT": "99999"}, "FLOTILLA_PORT='99999': Input should be"),
        (["worker"], {"FLOTILLA_MODLE": "x"}, "FLOTILLA_MODLE: there is no such setting; did you"),
    ],
)
def test_a_wrong_setting_is_one_line(
    arguments: list[str], environment: dict[str, str], line: str
) -> None:
    result = runner.invoke(main.app, arguments, env=environment)
    assert result.exit_code == 2
    assert result.stdout == ""
    assert result.stderr.startswith(line)
    assert result.stderr.count("\n") == 1


def test_each_program_replaces_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[list[str], dict[str, str]]] = []
    monkeypatch.setattr(
        processes.os, "execve", lambda path, argv, environment: calls.append((argv, environment))
    )
    assert runner.invoke(main.app, ["gateway", "--port", "9000"]).exit_code == 0
    arguments = ["worker", "--model", "m", "--engine-args", "--max-model-len 64", "--pool", "p"]
    assert runner.invoke(main.app, arguments).exit_code == 0
    assert runner.invoke(main.app, ["maintenance", "--redis-url", "redis://r/3"]).exit_code == 0
    (gateway_argv, gateway_env), (worker_argv, worker_env), (maintenance_argv, maintenance_env) = (
        calls
    )
    assert maintenance_argv == [sys.executable, "-m", "gateway.maintenance"]
    assert maintenance_env["FLOTILLA_REDIS_URL"] == "redis://r/3"
    assert gateway_argv == [sys.executable, "-m", "gateway"]
    assert gateway_env["FLOTILLA_PORT"] == "9000"
    assert worker_argv == [sys.executable, "-m", "worker"]
    assert worker_env["FLOTILLA_MODEL"] == "m"
    assert worker_env["FLOTILLA_ENGINE_ARGS"] == "--max-model-len 64"
    assert worker_env["FLOTILLA_POOL"] == "p"


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (["--engine", "simulated"], "simulated"),
        ([], DEMO_MODEL),
        (["--model", "org/m"], "org/m"),
        (["--model", "org/m", "--served-model-name", "m"], "m"),
    ],
)
def test_up_autoscales_the_model_that_its_workers_will_announce(
    monkeypatch: pytest.MonkeyPatch, flags: list[str], model: str
) -> None:
    seen: list[Any] = []

    async def fake(settings: Any, workers: int) -> int:
        await asyncio.sleep(0)
        seen.append(settings.autoscale)
        return 0

    monkeypatch.setattr(preflight, "check_and_run", fake)
    assert runner.invoke(main.app, ["up", *flags, "--autoscale", "0:3"]).exit_code == 0
    assert seen == [f"{model}=0:3"]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--autoscale", "3:1"], {}, "3:1"),
        (["--autoscale", "many"], {}, "many"),
        (["--autoscale", "0:3", "--workers", "2"], {}, "either --workers or --autoscale"),
        ([], {"FLOTILLA_AUTOSCALE": "other=0:3"}, f"it can only be {DEMO_MODEL}=MIN:MAX"),
        (
            ["--autoscale", "0:3", "--engine-args", "--served-model-name x"],
            {},
            "the model's name must be known",
        ),
    ],
)
def test_up_refuses_what_it_cannot_autoscale(
    arguments: list[str], environment: dict[str, str], words: str
) -> None:
    result = runner.invoke(main.app, ["up", *arguments], env=environment)
    assert result.exit_code == 2
    assert words in result.stderr


READY, STARTING, DRAINING = WorkerState.READY, WorkerState.STARTING, WorkerState.DRAINING


@pytest.mark.parametrize(
    ("states", "found_at"),
    [
        ([READY] * 100, None),
        ([STARTING] * 100, None),
        ([None] * 100, None),  # it has not announced itself yet
        ([STARTING, *[None] * 99], None),
        ([STARTING] * 50 + [READY, *[None] * 49], 60),
        ([READY, *[None] * 9, READY, *[None] * 89], 20),
        ([READY] + [DRAINING] * 99, 30),
        ([READY] + [DRAINING] * 5 + [None] * 94, 30),
    ],
)
def test_which_workers_stand_still(states: list[WorkerState | None], found_at: int | None) -> None:
    stalled = StalledWorkers(restart_after_s=10, drain_s=20)
    for second, state in enumerate(states):
        announced = {} if state is None else {"w": state}
        if stalled.find(["w"], announced, 1000.0 + second):
            assert second == found_at
            return
    assert found_at is None


def test_a_worker_is_not_blamed_for_a_time_that_nobody_saw() -> None:
    stalled = StalledWorkers(restart_after_s=10, drain_s=20)
    assert not stalled.find(["w"], {"w": READY}, 1000)
    assert not stalled.find(["w"], {}, 1100)  # Redis is back, its entries have expired
    assert not stalled.find(["w"], {}, 1101)

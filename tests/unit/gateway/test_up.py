"""The decisions and texts behind the `flotilla` command. What it does: tests/e2e/test_up.py."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gateway.cli import main, processes
from gateway.launcher import local_redis, ports
from gateway.launcher.console import Console
from gateway.launcher.service import Restart, after_end, how_it_ended
from gateway.launcher.welcome import PoolLine, how_many, progress, welcome
from worker.demo import MODEL_NAME

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


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "ended with exit status 0"),
        (3, "ended with exit status 3"),
        (-9, "was killed by SIGKILL"),
        (-40, "was killed by signal 40"),
    ],
)
def test_how_it_ended(status: int, words: str) -> None:
    assert how_it_ended(status) == words


@pytest.mark.parametrize(
    ("late", "line"),
    [
        (["gateway", "worker-1"], "worker-1 is loading the model, 20 s"),
        (["worker-1", "worker-2"], "worker-1, worker-2 are loading the model, 20 s"),
        (["gateway"], "waiting for gateway, 20 s"),
    ],
)
def test_progress(late: list[str], line: str) -> None:
    assert progress(late, 20.04) == line


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


def test_welcome_names_the_key_and_the_simulation() -> None:
    text = a_welcome(with_key=True, simulated=True)
    assert '-H "Authorization: Bearer $OPENAI_API_KEY"' in text
    assert "SIMULATED" in text


def test_welcome_lists_the_pools() -> None:
    assert "workers  2\n" in a_welcome()
    scaled = [PoolLine("p", ("m",), (0, 3))]
    assert "workers  0 to 3, as the load asks" in a_welcome(pools=scaled)
    several = a_welcome(pools=[*scaled, PoolLine("chat-1", ("chat", "c"), (1, 1))])
    assert "pool     p       m; workers: 0 to 3, as the load asks\n" in several
    assert "pool     chat-1  chat, c; workers: 1\n" in several


def test_the_workers_of_all_pools_are_counted() -> None:
    assert how_many([(1, 1)]) == "1 worker"
    assert how_many([(1, 1), (2, 2)]) == "3 workers"
    assert how_many([(0, 3), (1, 1)]) == "1 to 4 workers"


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


def test_find_server_prefers_the_system(tmp_path: Path) -> None:
    for name in ("valkey-server", "redis-server"):
        server = tmp_path / name
        server.write_text("#!/bin/sh\n")
        server.chmod(0o755)
        assert local_redis.find_server(str(tmp_path)) == str(server)


def test_redis_urls_are_shown_without_password() -> None:
    shown = local_redis.without_password("redis://me:secret@host:6379/0?password=secret")
    assert shown == "redis://host:6379/0"


async def test_a_folder_is_locked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_redis, "_LOCK_WAIT_S", 0.0)
    lock = await local_redis.lock_folder(tmp_path / "data")
    with pytest.raises(local_redis.FolderInUseError, match="already uses"):
        await local_redis.lock_folder(tmp_path / "data")
    os.close(lock)
    os.close(await local_redis.lock_folder(tmp_path / "data"))


def test_console(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    log = tmp_path / "worker-1.log"
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    plain = Console(["flotilla", "worker-1"], colours=False)
    plain.show("worker-1", "claimed 3 jobs")
    plain.end_of("worker-1", log)
    plain.end_of("worker-1", tmp_path / "none.log")
    lines = capsys.readouterr().out.splitlines()
    plain.end_of("worker-1", log, ["ValueError: no"])
    assert capsys.readouterr().out.splitlines()[0] == "worker-1 | ValueError: no"
    assert lines[0] == "worker-1 | claimed 3 jobs"
    assert lines[1] == "worker-1 |   line 85"
    assert lines[-1] == f"worker-1 | (the end of {log})"
    assert len(lines) == 1 + 15 + 1
    Console(["gateway"], colours=True).show("gateway", "up")
    assert re.fullmatch(r"\x1b\[\d+mgateway \|\x1b\[0m up\n", capsys.readouterr().out)


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


def test_up_passes_its_flags_and_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    async def fake(settings: Any, workers: int) -> int:
        await asyncio.sleep(0)
        seen.extend([settings, workers])
        return 7

    monkeypatch.setattr(processes, "check_and_run", fake)
    result = runner.invoke(main.app, ["up", "--workers", "3", "--port", "8123"])
    assert result.exit_code == 7
    assert seen[0].port == 8123
    assert seen[1] == 3
    assert "redis_url" not in seen[0].model_fields_set


@pytest.mark.parametrize(
    ("flags", "model"),
    [
        (["--engine", "simulated"], "simulated"),
        ([], MODEL_NAME),
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

    monkeypatch.setattr(processes, "check_and_run", fake)
    assert runner.invoke(main.app, ["up", *flags, "--autoscale", "0:3"]).exit_code == 0
    assert seen == [f"{model}=0:3"]


@pytest.mark.parametrize(
    ("arguments", "environment", "words"),
    [
        (["--autoscale", "3:1"], {}, "3:1"),
        (["--autoscale", "many"], {}, "many"),
        (["--autoscale", "0:3", "--workers", "2"], {}, "either --workers or --autoscale"),
        ([], {"FLOTILLA_AUTOSCALE": "other=0:3"}, f"it can only be {MODEL_NAME}=MIN:MAX"),
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


def test_help_and_version() -> None:
    for arguments in (
        ["--help"],
        ["up", "-h"],
        ["gateway", "-h"],
        ["worker", "-h"],
        ["maintenance", "-h"],
    ):
        result = runner.invoke(main.app, arguments)
        assert result.exit_code == 0
    assert runner.invoke(main.app, ["--version"]).stdout.startswith("flotilla ")

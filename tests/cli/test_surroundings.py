"""Programs in unusual surroundings: with a proxy, closed streams, another locale, `python -OO`."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import httpx
import pytest

from tests.harness.client import http
from tests.harness.collector import Collector
from tests.harness.fleet import Process, Stack
from tests.harness.servers import free_port
from tests.harness.settings import ROOT, child_environment
from tests.harness.up import FLOTILLA
from tests.harness.waiting import DEADLINE_S, wait_for

CLOSED = ("sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh")
"""Starts a program without stdin, stdout and stderr."""
OTHER_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
REFUSED = b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


class Proxy:
    """Refuses everything, and keeps what it was sent."""

    def __init__(self) -> None:
        self.seen: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        Thread(target=self._serve, daemon=True).start()
        self.close = self._listener.close

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                self.seen.append(connection.recv(65536))
                connection.sendall(REFUSED)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    found = Proxy()
    yield found
    found.close()


@pytest.fixture(scope="module")
def gateway(module_stack: Stack) -> Process:
    module_stack.worker()
    return module_stack.gateway(api_keys="team:k-team", admin_keys="ops:k-ops")


def flotilla(
    *arguments: str, folder: Path, starter: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """A command as a process of its own, in a folder."""
    return subprocess.run(
        [*starter, FLOTILLA, *arguments],
        cwd=folder,
        env={**child_environment(), "PYTHONPATH": str(ROOT), **environment},
        capture_output=True,
        encoding="utf-8",
        timeout=DEADLINE_S,
    )


@pytest.mark.parametrize("variable", ["HTTP_PROXY", "all_proxy"])
@pytest.mark.parametrize("command", [("chat", "hello"), ("doctor",)])
def test_calls_of_this_machine_use_no_proxy(
    gateway: Process, proxy: Proxy, tmp_path: Path, variable: str, command: tuple[str, ...]
) -> None:
    host = "localhost" if variable.isupper() else "127.0.0.1"
    done = flotilla(
        *command,
        folder=tmp_path,
        FLOTILLA_URL=gateway.url.replace("127.0.0.1", host),
        FLOTILLA_API_KEY="k-ops",
        **{variable: f"http://user:secret@127.0.0.1:{proxy.port}"},
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert proxy.seen == []


def test_a_proxy_that_can_not_be_used_does_not_matter_to_calls_of_this_machine(
    gateway: Process, tmp_path: Path
) -> None:
    environment = {"FLOTILLA_API_KEY": "k-ops", "ALL_PROXY": "socks5://user:secret@127.0.0.1:1"}
    near = flotilla("jobs", "ls", "--url", gateway.url, folder=tmp_path, **environment)
    assert near.returncode == 0, near.stderr
    far = flotilla("jobs", "ls", "--url", "http://flotilla.invalid", folder=tmp_path, **environment)
    assert far.returncode == 2
    assert "127.0.0.1:1" in far.stderr
    assert "secret" not in far.stderr
    assert len(far.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", [("doctor", "--json"), ("chat", "hello")])
def test_doctor_names_the_proxy_of_another_host(
    proxy: Proxy, tmp_path: Path, command: tuple[str, ...]
) -> None:
    named = f"user:secret@127.0.0.1:{proxy.port}"
    done = flotilla(*command, "--url", "http://flotilla.invalid", folder=tmp_path, HTTP_PROXY=named)
    assert done.returncode != 0
    assert b"flotilla.invalid" in proxy.seen[0]
    if command[0] == "doctor":
        found = {each["name"]: each["text"] for each in json.loads(done.stdout)["data"]}
        assert f"127.0.0.1:{proxy.port}" in found["proxy"]
    assert "secret" not in done.stdout + done.stderr


def test_a_host_in_no_proxy_uses_none(proxy: Proxy, tmp_path: Path) -> None:
    environment = {"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}", "NO_PROXY": ".invalid"}
    done = flotilla(
        "doctor", "--json", "--url", "http://flotilla.invalid", folder=tmp_path, **environment
    )
    assert "proxy" not in {each["name"] for each in json.loads(done.stdout)["data"]}
    assert proxy.seen == []


def test_an_address_in_a_file_of_the_folder_does_not_get_the_key(
    proxy: Proxy, tmp_path: Path
) -> None:
    (tmp_path / "flotilla.yaml").write_text(f"url: http://127.0.0.1:{proxy.port}\n")
    done = flotilla("jobs", "ls", folder=tmp_path, FLOTILLA_API_KEY="sk-1")
    assert done.returncode == 2
    assert "url" in done.stderr
    assert proxy.seen == []


@pytest.mark.parametrize(("mode", "foreign"), [(0o600, False), (0o666, False), (0o600, True)])
def test_a_fleet_of_the_folder_gets_the_key_only_if_its_file_is_the_users_own(
    proxy: Proxy, tmp_path: Path, mode: int, foreign: bool
) -> None:
    path = tmp_path / ".flotilla" / "run.json"
    path.parent.mkdir()
    url = f"http://127.0.0.1:{proxy.port}"
    path.write_text(json.dumps({"pid": os.getpid(), "redis_url": "", "gateway_url": url}))
    path.chmod(mode)
    if foreign:
        if os.getuid() != 0:
            pytest.skip("only root can give a file to another user")
        os.chown(path, 65534, 65534)
    with path.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)  # as a running `flotilla up` does
        flotilla("jobs", "ls", folder=tmp_path, FLOTILLA_API_KEY="sk-1")
    own = mode == 0o600 and not foreign
    assert [b"sk-1" in seen for seen in proxy.seen] == [True] * own


def test_traces_for_this_machine_use_no_proxy(stack: Stack, proxy: Proxy) -> None:
    pytest.importorskip("opentelemetry.exporter.otlp.proto.http")
    with Collector() as collector:
        gateway = stack.gateway(
            otlp_traces_endpoint=collector.url,
            variables={"HTTP_PROXY": f"http://127.0.0.1:{proxy.port}"},
        )
        stack.worker()
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 1}
        headers = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
        http.post(f"{gateway.url}/v1/chat/completions", json=body, headers=headers)
        wait_for(lambda: collector.spans, "spans have come", processes=[gateway])
    assert proxy.seen == []


def test_closed_streams(stack: Stack, tmp_path: Path) -> None:
    assert flotilla("config", "check", folder=tmp_path, starter=CLOSED).returncode == 0
    wrong = {"FLOTILLA_PORT": "none"}
    assert flotilla("gateway", folder=tmp_path, starter=CLOSED, **wrong).returncode == 2
    bare = Stack(stack.redis_url, tmp_path, CLOSED, fork=False)
    try:
        bare.worker()
        gateway = bare.gateway()
        wait_for(gateway.ready, "it serves", processes=[gateway])
        done = flotilla("chat", "hello", "--url", gateway.url, folder=tmp_path)
        assert "[simulated]" in done.stdout
    finally:
        bare.close()


def test_without_docstrings(stack: Stack, tmp_path: Path) -> None:
    bare = Stack(stack.redis_url, tmp_path, fork=False, python=(sys.executable, "-OO"))
    try:
        bare.worker()
        gateway = bare.gateway()
        done = flotilla("chat", "hello", "--url", gateway.url, folder=tmp_path, PYTHONOPTIMIZE="2")
        assert "[simulated]" in done.stdout, done.stderr
    finally:
        bare.close()


def test_other_locale(tmp_path: Path) -> None:
    folder = tmp_path / "schlüssel"
    folder.mkdir()
    (folder / "schlüssel.txt").write_text("team: ")
    (folder / "flotilla.yaml").write_text("api_keys_file: schlüssel.txt\n", encoding="utf-8")
    shown = flotilla("config", "show", folder=folder, **OTHER_LOCALE)
    assert shown.returncode == 0, shown.stderr
    assert "schlüssel.txt" in shown.stdout
    port = str(free_port())
    refused = flotilla("gateway", "--port", port, folder=folder, **OTHER_LOCALE)
    assert refused.returncode == 2
    assert "schlüssel.txt" in refused.stderr.splitlines()[0]
    assert len(refused.stderr.splitlines()) == 1


@pytest.mark.parametrize("key", ["k-ops", "k-team"])
def test_doctor_without_redis(stack: Stack, tmp_path: Path, key: str) -> None:
    away = f"redis://127.0.0.1:{free_port()}/0"
    settings = {"api_keys": "team:k-team", "admin_keys": "ops:k-ops", "redis_url": away}
    gateway = stack.gateway(wait=False, **settings)
    wait_for(lambda: answers(gateway), "it answers", processes=[gateway])
    done = flotilla("doctor", "--json", "--url", gateway.url, folder=tmp_path, FLOTILLA_API_KEY=key)
    assert done.returncode == 1
    found = json.loads(done.stdout)["data"]
    first = next(each for each in found if each["state"] != "ok")
    assert first["name"] == ("redis" if key == "k-ops" else "gateway")
    by_name = {each["name"]: each for each in found}
    assert "FLOTILLA_API_KEY" not in by_name["key"]["remedy"]
    assert by_name["key"]["remedy"]
    if key == "k-ops":
        assert not [each for each in found if "FLOTILLA_ADMIN_KEYS" in each["remedy"]]


def answers(gateway: Process) -> bool:
    try:
        return http.get(f"{gateway.url}/healthz").status_code < 500
    except httpx.TransportError:
        return False

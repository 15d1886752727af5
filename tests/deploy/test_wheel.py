"""The wheel, unpacked into an empty folder: it serves without the source tree."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

import pytest

from tests.harness.client import CHAT, MODEL, chat, http
from tests.harness.fleet import Process
from tests.harness.servers import RedisServer, free_port
from tests.harness.settings import ROOT, child_environment
from tests.harness.waiting import wait_for

START_S = 180.0
"""A program that starts cold on a busy machine imports for long."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what the wheel installs, and nothing else of the project."""
    wheels, target = tmp_path_factory.mktemp("wheels"), tmp_path_factory.mktemp("installed")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = ["wheel", "--no-deps", "--no-index", "--no-build-isolation", "-w", str(wheels)]
    subprocess.run([*pip, *build, str(ROOT)], check=True, cwd=wheels)
    (wheel,) = wheels.glob("flotilla-*.whl")
    into = ["install", "--no-deps", "--no-index", "--target", str(target)]
    subprocess.run([*pip, *into, str(wheel)], check=True, cwd=wheels)
    return target


@pytest.fixture(scope="module")
def gateway(
    installed: Path, redis_server: RedisServer, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[str]:
    """The URL of a gateway with a worker, both started in an empty folder."""
    with redis_server.client() as client:
        client.flushall()
    folder = tmp_path_factory.mktemp("fleet")
    ports = {"port": free_port(), "worker_port": free_port()}
    environment = child_environment(
        redis_url=redis_server.url, engine="simulated", sim_step_ms=1, **ports
    ) | {"PYTHONPATH": str(installed)}
    processes = []
    for command, port in (("gateway", ports["port"]), ("worker", ports["worker_port"])):
        log = folder / f"{command}.log"
        with log.open("wb") as output:
            popen = subprocess.Popen(
                [str(installed / "bin" / "flotilla"), command],
                cwd=folder,
                env=environment,
                stdout=output,
                stderr=output,
            )
        processes.append(Process(command, f"http://127.0.0.1:{port}", popen, log))
    try:
        for process in processes:
            wait_for(process.ready, f"the {process.name} is ready", START_S)
        yield processes[0].url
    finally:
        for process in processes:
            process.kill()


def test_it_comes_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    code = "import gateway, shared, worker; print(*(m.__file__ for m in (gateway, shared, worker)))"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert [Path(file).parents[1] for file in done.stdout.split()] == [installed] * 3


def test_it_tells_its_version(installed: Path, tmp_path: Path) -> None:
    (version,) = re.findall(
        r'^version = "(.+)"$', (ROOT / "pyproject.toml").read_text(), re.MULTILINE
    )
    done = subprocess.run(
        [installed / "bin" / "flotilla", "--version"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["flotilla", version]


def test_a_chat_is_answered(gateway: str) -> None:
    answer = http.post(f"{gateway}{CHAT}", json=chat(max_tokens=4), timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["model"] == MODEL


@pytest.mark.parametrize("path", ["/", "/docs"])
def test_pages_have_their_files(gateway: str, path: str) -> None:
    page = http.get(gateway + path)
    assert page.status_code == 200
    loaded = re.findall(r'(?:src|href)="([^"#]+)"', page.text)
    assert len(loaded) > 2
    for link in loaded:
        assert http.get(urljoin(str(page.url), link)).status_code == 200, link

"""`flotilla scale explain` on a real Redis."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.autoscaler.tick import tick
from gateway.cli.main import app
from gateway.launcher import run_file
from shared.fleet.registry import Registry
from shared.platform.settings import Settings
from tests.redis.conftest import POOL, open_queue, submit
from tests.redis_server import free_port
from tests.unit.gateway.test_observation import worker


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in list(os.environ):
        if name.startswith("FLOTILLA_"):
            monkeypatch.delenv(name)


def explain(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["scale", "explain", *arguments])


@pytest.fixture
def fleet(redis_url: str) -> str:
    """A fleet with two queued jobs and one worker, after a tick of the autoscaler."""

    async def prepare() -> None:
        async with open_queue(redis_url) as queue:
            registry = Registry(queue.servers.primary)
            settings = Settings(autoscale="org/m=1:4", pool=POOL)
            await tick(queue, registry, settings)
            await submit(queue)
            await submit(queue)
            busy = worker(pool=POOL, finished=4, job_seconds=6.0, start_s=40.0, prompt_tokens=8)
            await registry.announce(busy)
            await tick(queue, registry, settings)

    asyncio.run(prepare())
    return redis_url


def test_a_page_for_people(fleet: str) -> None:
    for name in ("org/m", POOL):
        shown = explain(name, "--redis-url", fleet)
        assert shown.exit_code == 0, shown.stderr
        for part in (
            f"org/m (pool {POOL})",
            "wanted   1 worker, of 1 to 4",
            "actual   1 ready",
            "because  ",
            "2 jobs waiting, about 7 tokens, the oldest for 0.",
            "a job takes 1.5 s and 2 tokens",
            "a worker runs 8 jobs at once",
            "a worker takes 40 s to start",
            "80% of the slots are busy in steady load",
            "-> 1 ",
        ):
            assert part in shown.stdout, part


def test_json_for_programs(fleet: str) -> None:
    (pool,) = json.loads(explain("--json", "--redis-url", fleet).stdout)["data"]
    assert (pool["pool"], pool["wanted"], pool["workers"]) == (POOL, 1, {"ready": 1})
    assert pool["inputs"]["waiting"] == 2
    assert pool["history"][-1]["wanted"] == 1


def test_the_fleet_of_this_folder_is_the_default(fleet: str, tmp_path: Path) -> None:
    folder = tmp_path / ".flotilla"
    folder.mkdir()
    nobody = f"redis://127.0.0.1:{free_port()}/0"
    with run_file.written(folder, redis_url=fleet, gateway_url="http://127.0.0.1:1"):
        assert "wanted   1 worker" in explain().stdout
        assert (folder / "run.json").stat().st_mode & 0o777 == 0o600
        assert explain("--redis-url", nobody).exit_code == 1
    assert not (folder / "run.json").exists()
    assert run_file.redis_url(folder) is None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": 1}', '{"pid": "1", "redis_url": "x"}', '{"pid": 99999999}']
)
def test_an_unusable_run_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.json").write_text(text)
    assert run_file.redis_url(tmp_path) is None


def test_a_fleet_without_an_autoscaler_says_so(redis_url: str) -> None:
    shown = explain("--redis-url", redis_url)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("No autoscaler decides for this fleet: start it with")


def test_an_unknown_name(fleet: str) -> None:
    shown = explain("nobody", "--redis-url", fleet)
    assert shown.exit_code == 1
    assert shown.stderr == "flotilla: there is no pool and no model 'nobody' in this fleet\n"


def test_no_redis() -> None:
    shown = explain("--redis-url", f"redis://me:secret@127.0.0.1:{free_port()}/0")
    assert shown.exit_code == 1
    assert shown.stderr.startswith("flotilla: no Redis answers at redis://127.0.0.1:")
    assert "secret" not in shown.stderr
    assert "run this in the folder of `flotilla up`, or give --redis-url" in shown.stderr

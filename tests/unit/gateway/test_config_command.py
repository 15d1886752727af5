"""`flotilla config`: what it checks and shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gateway.cli import main
from shared.platform.config_file import parse

runner = CliRunner()
FILE = """\
port: 9000
redis_url: redis://:secret@h:1/0
api_keys: [alice:secret]
pools:
  chat-1: {model: org/chat, served_names: [chat, c], version: 1, weight: 90}
  chat-2: {model: org/chat2, served_names: [chat, c], version: 2, weight: 10, workers: 2}
  embed: {model: org/e, min_workers: 0, max_workers: 3, engine_args: {max_model_len: 64}}
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory, with a flotilla.yaml and no other settings."""
    monkeypatch.setattr("shared.platform.settings.SECRETS", tmp_path / "secrets")
    for name in [name for name in os.environ if name.startswith("FLOTILLA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "flotilla.yaml").write_text(FILE)
    return tmp_path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot: 1\n", "did you mean port?"),
        ("pools: {a: {model: m}, b: {model: m}}\n", "both serve 'm'"),
        ("pools: {a: {modle: m}}\n", "pools.a.modle='m': Extra inputs"),
        ("tenants: {a: {weight: 0}}\n", "tenants.a.weight=0: Input should be greater"),
        ("tenants: {a: {wait: 1}}\n", "tenants.a.wait=1: Extra inputs"),
        ("tenants: {'a b': {}}\n", "'a b' is no tenant"),
        ("fair_shares: {lift: 2}\n", "fair_shares.lift=2: Input should be less"),
    ],
)
def test_check_names_what_is_wrong(folder: Path, text: str, problem: str) -> None:
    (folder / "flotilla.yaml").write_text(text)
    result = runner.invoke(main.app, ["config", "check"])
    assert result.exit_code == 2
    assert problem in result.stderr


def test_check_without_a_file_checks_the_variables() -> None:
    Path("flotilla.yaml").unlink()
    assert runner.invoke(main.app, ["config", "check"]).exit_code == 0
    variables = {"FLOTILLA_PORT": "x", "FLOTILLA_WORKER_PORT": "x", "FLOTILLA_SIM_STEP_MS": "x"}
    result = runner.invoke(main.app, ["config", "check"], env=variables)
    assert result.exit_code == 2
    named = {line.split("=")[0].removeprefix("flotilla: ") for line in result.stderr.splitlines()}
    assert named == set(variables), "of every process"


def test_show_prints_a_file_that_means_the_same_without_secrets() -> None:
    result = runner.invoke(main.app, ["config", "show"])
    assert result.exit_code == 0
    assert "secret" not in result.stdout
    shown, given = parse(result.stdout, "shown"), parse(FILE, "given")
    assert set(shown) == set(given)
    assert shown["redis_url"] == "redis://h:1/0"
    assert shown["pools"]["embed"] == given["pools"]["embed"]
    assert shown["pools"]["chat-1"]["version"] == "1"


def test_show_says_where_each_value_comes_from() -> None:
    environment = {"FLOTILLA_PORT": "9001", "FLOTILLA_POOLS__EMBED__MAX_WORKERS": "5"}
    result = runner.invoke(main.app, ["config", "show", "--origin"], env=environment)
    lines = {
        line.split(":")[0].strip(): line.rpartition("# ")[2] for line in result.stdout.splitlines()
    }
    assert (lines["port"], lines["redis_url"]) == ("variable", "file")
    assert (lines["max_workers"], lines["min_workers"]) == ("variable", "file")
    assert "shards" not in lines
    result = runner.invoke(main.app, ["config", "show", "--origin", "--all"])
    assert "shards: 1" in result.stdout
    assert result.stdout.count("# default") > 50


@pytest.mark.parametrize("arguments", [["--workers", "2"], ["--autoscale", "0:2"]])
def test_up_takes_the_numbers_of_workers_from_the_file(arguments: list[str]) -> None:
    result = runner.invoke(main.app, ["up", *arguments])
    assert result.exit_code == 2
    assert "numbers of workers" in result.stderr

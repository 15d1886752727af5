"""flotilla.yaml: settings and pools from a file, below flags, variables and secret files."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import shared.fleet
from shared.fleet.pools import load_pools
from shared.platform.settings import PREFIX, SettingsError, load_settings, origin, to_environment
from tests.harness.settings import Settings
from worker.worker_settings import WorkerSettings

POOLS = """\
pools:
  chat:
    model: org/chat
    served_names: [chat, assistant]
    weight: 10
"""


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The working directory, without settings from elsewhere."""
    monkeypatch.setattr("shared.platform.settings.SECRETS", tmp_path / "secrets")
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder: Path, text: str, name: str = "flotilla.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_the_file_in_the_working_directory_is_read(folder: Path) -> None:
    path = write(folder, "port: 9000\nlease_s: 2.5\n" + POOLS)
    settings = load_settings(Settings)
    assert (settings.port, settings.lease_s, settings.config) == (9000, 2.5, path)
    assert settings.pools["chat"].served_names == ("chat", "assistant")
    assert Settings().port == 8000, "only load_settings reads files"


def test_a_file_elsewhere_is_named_by_a_variable_or_a_flag(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "port: 1\n")
    write(folder, "port: 2\n", "two.yaml")
    three = write(folder, "port: 3\n", "three.yaml")
    monkeypatch.setenv("FLOTILLA_CONFIG", "two.yaml")
    assert load_settings(Settings).port == 2
    settings = load_settings(Settings, config=Path("three.yaml"))
    assert (settings.port, settings.config) == (3, three), "absolute, for child processes"


def test_flags_variables_and_secret_files_win(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(folder, "port: 1\nshards: 1\nlease_s: 1\ngrace_s: 1\n")
    (folder / "secrets").mkdir()
    (folder / "secrets/flotilla_lease_s").write_text("2")
    monkeypatch.setenv("FLOTILLA_SHARDS", "3")
    settings = load_settings(Settings, port=4)
    assert (settings.grace_s, settings.lease_s, settings.shards, settings.port) == (1, 2, 3, 4)
    file = {"port": 1, "shards": 1, "lease_s": 1, "grace_s": 1}
    names = ("grace_s", "lease_s", "shards", "port", "host")
    origins = [origin(name, {"port": 4}, file) for name in names]
    assert origins == ["file", "secret file", "variable", "flag", "default"]


def test_a_variable_sets_one_key_of_a_pool(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, POOLS)
    monkeypatch.setenv("FLOTILLA_POOLS__CHAT__WEIGHT", "20")
    monkeypatch.setenv("FLOTILLA_POOLS__CHAT__SERVED_NAMES", '["a", "b"]')
    pool = load_settings(Settings).pools["chat"]
    assert (pool.weight, pool.model, pool.served_names) == (20, "org/chat", ("a", "b"))


def test_a_child_reads_the_same_pools(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(folder, "port: 9000\n" + POOLS)
    monkeypatch.setenv("FLOTILLA_POOLS__CHAT__WEIGHT", "20")
    settings = load_settings(Settings, host="::1")
    environment = to_environment("worker", settings, pool="chat")
    for name, value in environment.items():
        if name.startswith(PREFIX):
            monkeypatch.setenv(name, value)
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    child = load_settings(WorkerSettings)
    assert (child.pool, child.pools) == ("chat", settings.pools)
    assert load_pools(child).own.weight == 20


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("prot: 1\n", "prot: there is no such setting; did you mean port?"),
        ("config: x\n", "config: there is no such setting"),
        ("url: http://x\n", "url: there is no such setting in a file"),
        ("port: many\n", "port='many': Input should be a valid integer"),
        ("- port\n", "this must be a mapping"),
        ("port: 1\nport: 2\n", "'port' is there twice in line 2"),
        ("port: [\n", "line 2"),
        ("port: *x\n", "undefined alias"),
        ("redis_url: http://u:pw@h\n", "redis_url: must start with redis://"),
        ("pools: {Chat: {}}\n", "'Chat' is no name of a pool"),
        ("pools: {chat: {colour: red}}\n", "pools.chat.colour='red': Extra inputs"),
        ("pools: {chat: {weight: -1}}\n", "pools.chat.weight=-1: Input should be greater"),
        ("pools: {chat: {version: a b}}\n", "pools.chat.version='a b': a version is"),
        ("pools: {chat: {workers: 1, max_workers: 2}}\n", "either `workers`, or `min_workers`"),
        ("pools: {chat: {min_workers: 3, max_workers: 2}}\n", "3 is more than `max_workers` 2"),
        ("pools: {chat: {served_names: [a, a]}}\n", "none may be there twice"),
        ("pools: {chat: {engine_args: {served_model_name: x}}}\n", "set that"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(folder: Path, text: str, problem: str) -> None:
    path = write(folder, text)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert str(caught.value).startswith(f"{path}: ")
    assert problem in str(caught.value)
    assert "pw" not in str(caught.value)


def test_an_empty_file_changes_nothing_and_merge_keys_work(folder: Path) -> None:
    path = write(folder, "# nothing\n")
    assert load_settings(Settings) == Settings(config=path)
    write(
        folder,
        "pools:\n  a: &a {model: m, version: 1, weight: 90}\n"
        "  b: {<<: *a, version: 2, weight: 10}\n",
    )
    pools = load_settings(Settings).pools
    assert (pools["b"].model, pools["b"].version, pools["b"].weight) == ("m", "2", 10)


@pytest.mark.parametrize("name", ["model", "served_model_name", "engine_args", "autoscale"])
def test_one_pool_cannot_be_described_beside_the_list(folder: Path, name: str) -> None:
    value = "m=0:1" if name == "autoscale" else "m"
    write(folder, f"{name}: {value}\n{POOLS}")
    with pytest.raises(SettingsError, match=f"`{name}` describes one pool, but /"):
        load_pools(load_settings(Settings))
    write(folder, POOLS)
    with pytest.raises(SettingsError, match=f"`{name}` describes one pool, but /"):
        load_pools(load_settings(Settings, **{name: value}))


def test_the_example_on_the_page_is_right(folder: Path) -> None:
    page = (Path(shared.fleet.__file__).parent / "MODELS.md").read_text()
    write(folder, page.split("```yaml\n")[1].split("```")[0])
    pools = load_pools(load_settings(Settings))
    assert [pool.name for pool in pools.all] == ["chat-1", "chat-2", "embed"]
    assert pools.all[0].engine_names[2:] == ("chat:1", "qwen3-8b:1")

"""Settings: every variable is known, right, or named in the error; keys are never shown."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from shared.platform.settings import (
    DECLARED,
    PREFIX,
    SettingsError,
    declared,
    load_all,
    load_settings,
    set_engine_defaults,
    set_engine_variable,
    to_environment,
)
from tests.harness.settings import Settings

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """No variables, and a folder of secret files that is empty."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    monkeypatch.setattr("shared.platform.settings.SECRETS", folder)
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        monkeypatch.delenv(name)
    return folder


def test_without_any_variable_the_defaults_hold() -> None:
    assert load_settings(Settings) == Settings()
    assert load_settings(Settings).tenants_by_key() == {}


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("FLOTILLA_PROT", "FLOTILLA_PORT"),
        ("FLOTILLA_REDIS", "FLOTILLA_REDIS_URL"),
        ("FLOTILLA_APIKEYS", "FLOTILLA_API_KEYS"),
        ("FLOTILLA_LEASE", "FLOTILLA_LEASE_S"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_one_that_was_meant(
    monkeypatch: pytest.MonkeyPatch, variable: str, meant: str
) -> None:
    monkeypatch.setenv(variable, SECRET)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert str(caught.value) == f"{variable}: there is no such setting; did you mean {meant}?"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PORT", "70000"),
        ("PORT", "-1"),
        ("PORT", "http"),
        ("SHARDS", "0"),
        ("SHARDS", "4097"),
        ("LEASE_S", "0.1"),
        ("LEASE_S", "nan"),
        ("MAX_ATTEMPTS", "0"),
        ("LOG_LEVEL", "loud"),
        ("ENGINE", "tgi"),
        ("KV_HIGH_WATERMARK", "1.5"),
        ("MAX_BODY_BYTES", "1"),
        ("WORKER_ID", "a b"),
        ("WORKER_ID", "a:b"),
        ("WORKER_ID", "x" * 65),
    ],
)
def test_a_wrong_value_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(PREFIX + name, value)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert str(caught.value).startswith(f"{PREFIX}{name}={value!r}: ")


# --- secret files ---


def test_a_misspelt_file_is_refused_with_the_one_that_was_meant(secrets: Path) -> None:
    (secrets / "flotilla_redis_ulr").write_text(SECRET)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    problem = "there is no such setting; did you mean flotilla_redis_url?"
    assert str(caught.value) == f"{secrets}/flotilla_redis_ulr: {problem}"


def test_a_folder_in_place_of_a_file_is_refused(secrets: Path) -> None:
    # what a container engine makes of a secret whose source is not there
    (secrets / "flotilla_redis_url").mkdir()
    with pytest.raises(SettingsError, match=r"flotilla_redis_url.* found a directory"):
        load_settings(Settings)


def test_a_file_that_is_no_text_is_refused(secrets: Path) -> None:
    (secrets / "flotilla_redis_url").write_bytes(b"\xff")
    with pytest.raises(SettingsError, match="can't decode"):
        load_settings(Settings)


@pytest.mark.parametrize("text", ["alice:k1,bob:k2", "alice:k1\nbob:k2\n", "\nalice:k1,\n bob:k2 "])
def test_keys_of_a_secret_file_are_separated_by_lines_or_commas(secrets: Path, text: str) -> None:
    (secrets / "flotilla_api_keys").write_text(text)
    assert load_settings(Settings).tenants_by_key() == {digest("k1"): "alice", digest("k2"): "bob"}


# --- keys ---


def digest(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()


@pytest.mark.parametrize(
    ("text", "tenants"),
    [
        ("", {}),
        (" , ", {}),
        ("alice:k1", {"k1": "alice"}),
        ("alice:k1, bob:k2 ,", {"k1": "alice", "k2": "bob"}),
        ("alice:k1,alice:k2", {"k1": "alice", "k2": "alice"}),
        ("alice:k:with:colons", {"k:with:colons": "alice"}),
        ("k1", {"k1": f"key-{digest('k1')[:8]}"}),
    ],
)
def test_keys_identify_tenants(
    monkeypatch: pytest.MonkeyPatch, text: str, tenants: dict[str, str]
) -> None:
    monkeypatch.setenv("FLOTILLA_API_KEYS", text)
    expected = {digest(key): tenant for key, tenant in tenants.items()}
    assert load_settings(Settings).tenants_by_key() == expected


def test_keys_of_a_file_come_on_top(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# who may call\n\nbob:k2\n  carol:k3  \nk4\n")
    monkeypatch.setenv("FLOTILLA_API_KEYS", "alice:k1")
    monkeypatch.setenv("FLOTILLA_API_KEYS_FILE", str(file))
    tenants = load_settings(Settings).tenants_by_key()
    names = [tenants[digest(key)] for key in ("k1", "k2", "k3")]
    assert names == ["alice", "bob", "carol"]
    assert len(tenants) == 4


def test_a_keys_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"FLOTILLA_API_KEYS_FILE=.*nowhere"):
        Settings(api_keys_file=tmp_path / "nowhere").tenants_by_key()


@pytest.mark.parametrize(
    "text",
    [
        f"a b:{SECRET}",
        f":{SECRET}",
        f"{'x' * 65}:{SECRET}",
        f"ok:k,ä:{SECRET}",
        "alice:",
        f"# {SECRET}",
    ],
)
def test_a_wrong_key_is_refused_and_not_shown(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("FLOTILLA_API_KEYS", text)
    with pytest.raises(SettingsError) as caught:
        load_settings(Settings)
    assert str(caught.value).startswith("FLOTILLA_API_KEYS: ")
    assert SECRET not in str(caught.value)


def test_keys_are_not_shown_by_the_settings_themselves() -> None:
    settings = Settings(api_keys=(SecretStr(SECRET),))
    assert SECRET not in repr(settings) + str(settings) + str(settings.model_dump())
    assert SECRET not in str(settings.tenants_by_key())


# --- children ---


@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"redis_url": "redis://h:1/2", "shards": 4, "lease_s": 0.5},
        {"api_keys": "alice:k1,k2", "host": "::1"},
        {"shards": 4, "redis_url": "unix:///b%20c?db=0"},
        {"api_keys_file": Path("/a b/keys"), "engine": "simulated", "sim_step_ms": 1.5},
        {"engine_args": "--a 'b c' --d=\"e\"", "served_model_name": "ü, x"},
    ],
)
def test_a_child_sees_the_same_settings(
    monkeypatch: pytest.MonkeyPatch, flags: dict[str, Any]
) -> None:
    settings = load_settings(Settings, **flags)
    for process in DECLARED:
        environment = to_environment(process, settings)
        with monkeypatch.context() as child:
            for name in [name for name in os.environ if name.startswith(PREFIX)]:
                child.delenv(name)
            for name, value in environment.items():
                child.setenv(name, value)
            for kind in declared(process):
                seen = load_settings(kind)
                assert all(getattr(settings, name) == value for name, value in seen)


def test_a_child_sees_the_changes_and_the_rest_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("flotilla_port", "1")
    monkeypatch.setenv("FLOTILLA_SHARDS", "3")
    monkeypatch.setenv("FLOTILLA_GRACE_S", "9")
    monkeypatch.setenv("SOMETHING_ELSE", "stays")
    environment = to_environment("gateway", Settings(port=5), shards=None, lease_s=6)
    assert environment["SOMETHING_ELSE"] == "stays"
    assert ours(environment) == {
        "FLOTILLA_PORT": "5",
        "FLOTILLA_GRACE_S": "9",
        "FLOTILLA_LEASE_S": "6",
    }


def ours(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name.upper().startswith(PREFIX)}


KEYS = {"api_keys": f"a:{SECRET}", "admin_keys": f"b:{SECRET}", "api_keys_file": "/k"}


@pytest.mark.parametrize("process", ["worker", "maintenance", ""])
def test_a_child_that_is_no_gateway_has_no_keys(
    monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    monkeypatch.setenv("FLOTILLA_API_KEY", SECRET)
    settings = Settings(**KEYS, shards=5)  # type: ignore[arg-type]
    assert SECRET in str(ours(to_environment("gateway", settings)))
    assert ours(to_environment(process, settings)) == ({"FLOTILLA_SHARDS": "5"} if process else {})
    for name, value in KEYS.items():
        monkeypatch.setenv(PREFIX + name.upper(), value)
    assert ours(to_environment(process)) == {}


# --- processes ---


@pytest.mark.parametrize("process", ["worker", "maintenance"])
def test_only_gateways_and_what_starts_them_have_the_keys(
    monkeypatch: pytest.MonkeyPatch, process: str
) -> None:
    for name, value in KEYS.items():
        monkeypatch.setenv(PREFIX + name.upper(), value)
    for kind in declared(process):
        assert not set(KEYS) & set(kind.model_fields)
        assert SECRET not in repr(load_settings(kind))


def test_a_wrong_value_stops_only_the_processes_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FLOTILLA_MAX_INPUTS", "0")
    monkeypatch.setenv("FLOTILLA_SIM_STEP_MS", "x")
    monkeypatch.setenv("FLOTILLA_SHARDS", "0")
    with pytest.raises(SettingsError) as caught:
        load_settings(declared("worker")[0])
    assert [line.split("=")[0] for line in str(caught.value).splitlines()] == ["FLOTILLA_SHARDS"]
    with pytest.raises(SettingsError) as caught:
        load_all()
    lines = [line.split("=")[0] for line in str(caught.value).splitlines()]
    assert sorted(lines) == ["FLOTILLA_MAX_INPUTS", "FLOTILLA_SHARDS", "FLOTILLA_SIM_STEP_MS"]


def test_engine_variables_set_by_the_user_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_A", "theirs")
    monkeypatch.delenv("VLLM_B", raising=False)
    set_engine_defaults({"VLLM_A": "ours", "VLLM_B": "ours"})
    assert (os.environ["VLLM_A"], os.environ["VLLM_B"]) == ("theirs", "ours")
    set_engine_variable("VLLM_A", "forced")
    assert os.environ["VLLM_A"] == "forced"
    monkeypatch.delenv("VLLM_B")


@pytest.mark.parametrize("text", [b"", b"# nothing\n  # but this\n", b"a b:key\n", b"\xff\xfe"])
def test_a_keys_file_without_a_sound_key_opens_nothing(tmp_path: Path, text: bytes) -> None:
    path = tmp_path / "keys"
    path.write_bytes(text)
    with pytest.raises(SettingsError, match="FLOTILLA_API_KEYS_FILE="):
        Settings(api_keys_file=path).tenants_by_key()

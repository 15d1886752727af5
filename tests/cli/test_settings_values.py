"""Values of settings as files, shells and people leave them: they work, or are refused by name."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.harness.cli import run_flotilla
from tests.harness.client import http
from tests.harness.fleet import Stack

SECRET = "very-secret"


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("MODEL", " m\n", "m"),
        ("DEFAULT_MODEL", "m\r\n", "m"),
        ("REDIS_URL", "redis://10.0.0.5:6379/0\n", "redis://10.0.0.5:6379/0"),
        ("STORAGE_URL", " /data ", "/data"),
        ("API_KEYS_FILE", "keys.txt\n", "keys.txt"),
        ("HOST", "127.0.0.1 ", "127.0.0.1"),
        ("ENGINE_ARGS", "--max-num-seqs '8'\n --enforce-eager", "--max-num-seqs '8'"),
    ],
)
def test_space_around_a_value_is_no_part_of_it(name: str, value: str, shown: str) -> None:
    environment = {f"FLOTILLA_{name}": value}
    done = run_flotilla("config", "show", environment=environment)
    assert f'{name.lower()}: "{shown}' in done.stdout
    run_flotilla("config", "check", environment=environment)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("MODEL", "m\nn"),
        ("MODEL", '"m"'),
        ("MODEL", "'m'"),
        ("MODEL", "m\x1b[1m"),
        ("DEFAULT_MODEL", '"m"'),
        ("SERVED_MODEL_NAME", '"a",b'),
        ("POOL", "a\tb"),
        ("ENGINE_ARGS", "'--max-num-seqs 8'"),
        ("STORAGE_URL", '"/data"'),
        ("API_KEYS", f'"team:{SECRET}"'),
        ("API_KEYS", f"team:'{SECRET}'"),
        ("API_KEYS", f"team:{SECRET}\x01x"),
        ("ADMIN_KEYS", f"'{SECRET}'"),
        ("API_KEY", f'"{SECRET}"'),
        ("REDIS_URL", f"'redis://:{SECRET}@10.0.0.5'"),
        ("POOLS__CHAT__MODEL", '"m"'),
        ("POOLS__CHAT__ADAPTERS", '{"a": "x\\ny"}'),
    ],
)
def test_what_can_not_be_meant_is_refused_by_name(name: str, value: str) -> None:
    done = run_flotilla("config", "check", environment={f"FLOTILLA_{name}": value}, code=2)
    (line,) = done.stderr.splitlines()
    assert f"FLOTILLA_{name.partition('__')[0]}" in line
    assert SECRET not in line


@pytest.mark.parametrize("scheme", ["redis", "rediss", "redis+cluster", "redis+sentinel"])
@pytest.mark.parametrize("password", ["p/w", "p?w", "p#w", "p@s/w#rd", "p[w"])
def test_a_password_that_is_not_percent_encoded(scheme: str, password: str) -> None:
    service = "/fleet/0" if scheme == "redis+sentinel" else ""
    url = f"{scheme}://:{SECRET}{password}@10.0.0.5:6379{service}"
    done = run_flotilla("config", "check", environment={"FLOTILLA_REDIS_URL": url}, code=2)
    assert "%2F" in done.stderr
    assert "FLOTILLA_REDIS_URL" in done.stderr
    assert SECRET not in done.stderr


def test_a_percent_encoded_password() -> None:
    url = "redis://user:p%40s%2Fw%23%3F%5B@[::1]:6379/0"
    run_flotilla("config", "check", environment={"FLOTILLA_REDIS_URL": url})


@pytest.mark.parametrize("keys", ["team: k-team", " team :k-team", "other:k , team: k-team\n"])
def test_space_in_a_list_of_keys_is_no_part_of_them(stack: Stack, keys: str) -> None:
    gateway = stack.gateway(api_keys=keys)
    headers = {"authorization": "Bearer k-team"}
    answer: httpx.Response = http.get(f"{gateway.url}/v1/models", headers=headers)
    assert answer.status_code == 200

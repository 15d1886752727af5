"""`flotilla keys limit`: what it names is set, the other limits stay."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.harness.cli import run_flotilla
from tests.harness.fleet import Stack
from tests.harness.keys import KEYS

Flotilla = Callable[..., Any]


@pytest.fixture
def flotilla(stack: Stack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Flotilla:
    """Run a command as an operator."""
    monkeypatch.chdir(tmp_path)
    url = stack.gateway(**KEYS).url
    environment = {"FLOTILLA_URL": url, "FLOTILLA_API_KEY": "adm1n"}
    return functools.partial(run_flotilla, environment=environment)


@pytest.mark.parametrize("of_key", [True, False])
def test_limits_that_are_not_named_stay(flotilla: Flotilla, *, of_key: bool) -> None:
    key = json.loads(flotilla("keys", "create", "team", "--json").stdout)["id"]
    whose = key if of_key else "team"

    def limit(*options: str) -> dict[str, int]:
        shown = json.loads(flotilla("keys", "limit", whose, *options, "--json").stdout)
        return {name: number for name, number in shown["limits"].items() if number}

    assert limit("--tokens-per-day", "1000000") == {"tokens_per_day": 1_000_000}
    both = {"tokens_per_day": 1_000_000, "requests_per_minute": 60}
    assert limit("--requests-per-minute", "60") == both
    assert limit("--tokens-per-day", "0") == {"requests_per_minute": 60}
    flotilla("keys", "limit", whose, code=2)
    flotilla("keys", "limit", "key_none", "--tokens-per-day", "1", code=3)

"""A stub gateway, and commands that call it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gateway.cli.main import app
from tests.unit.gateway.cli.stub import StubGateway

Flotilla = Callable[..., Result]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty working directory, and no settings."""
    monkeypatch.setattr("shared.platform.settings.SECRETS", tmp_path / "secrets")
    for name in [name for name in os.environ if name.startswith("FLOTILLA_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def stub() -> Iterator[StubGateway]:
    stub = StubGateway()
    yield stub
    stub.close()


@pytest.fixture
def flotilla(stub: StubGateway, monkeypatch: pytest.MonkeyPatch) -> Flotilla:
    """Run a command: its exit code, stdout and stderr."""
    monkeypatch.setenv("FLOTILLA_URL", stub.url)

    def run(*arguments: str, stdin: str | None = None) -> Result:
        result = CliRunner().invoke(app, list(arguments), input=stdin)
        if result.exception and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run

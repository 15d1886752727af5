"""The pepper that `flotilla up` makes."""

from __future__ import annotations

from pathlib import Path

from gateway.launcher.key_pepper import kept_pepper
from tests.harness.settings import Settings


def test_it_is_made_once_and_only_its_owner_reads_it(tmp_path: Path) -> None:
    pepper = kept_pepper(tmp_path)
    assert kept_pepper(tmp_path) == pepper
    (file,) = tmp_path.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert Settings(key_peppers=pepper).key_peppers[0].get_secret_value() == pepper  # type: ignore[arg-type]


def test_a_beginning_that_was_not_finished_is_made_anew(tmp_path: Path) -> None:
    (tmp_path / "key_pepper.new").write_text("short")
    assert len(kept_pepper(tmp_path)) >= 32

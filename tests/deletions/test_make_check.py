"""`make check` is green in a copy of the tree without a plug-in (`make test-deletions`)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deletions.deletion import WITH_TESTS, delete
from tests.test_architecture import ROOT

_LEFT_OUT = (".git", ".venv", ".cache", ".flotilla", "__pycache__", ".hypothesis")


@pytest.mark.timeout(3600)
@pytest.mark.parametrize("folder", WITH_TESTS)
def test_make_check_is_green_without(folder: str, tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    (tree / ".venv").symlink_to(ROOT / ".venv")
    delete(folder, tree)
    done = subprocess.run(
        ["make", "-o", "install", "check"],
        cwd=tree,
        env=os.environ | {"PYTHONPATH": str(tree)},  # else .venv has the packages of this tree
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]

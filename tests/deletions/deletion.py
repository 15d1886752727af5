"""Deletes a plug-in in a copy of the tree: its folder, its tests, and the lines that name them."""

from __future__ import annotations

import shutil
from pathlib import Path

WITH_TESTS = ("gateway/apis/responses", "gateway/apis/torchserve", "worker/plugins/hooks")
"""The plug-ins whose tests are in folders of their name, wherever these are in tests/."""
LINES = (
    "gateway/apis/table.py",
    "worker/plugins/table.py",
    "shared/platform/settings.py",
    "docs/mkdocs.yml",
    "README.md",
    "SECURITY.md",
)
"""The files that name plug-ins or their tests, each in a line of its own."""


def delete(folder: str, tree: Path) -> None:
    """Delete the plug-in in `folder` from the copy of the tree (or a part of it) at `tree`."""
    tests = [path for path in (tree / "tests").rglob(Path(folder).name) if path.is_dir()]
    for path in (tree / folder, *tests):
        shutil.rmtree(path)
    gone = [f"{folder}/", f"{folder.replace('/', '.')}."]
    gone += [f"{path.relative_to(tree)}/" for path in tests]
    for file in filter(Path.exists, (tree / each for each in LINES)):
        lines = file.read_text().splitlines(keepends=True)
        named = [line for line in lines if any(each in line for each in gone)]
        # What a table of plug-ins imports has one more line there.
        imported = [f"{line.split()[-1]}," for line in named if " import " in line]
        rest = [line for line in lines if line not in named and line.strip() not in imported]
        file.write_text("".join(rest))

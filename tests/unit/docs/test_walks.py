"""docs/pages/walks.md: each file of a walk exists and has the function by which the path enters."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.budgets import WALKS, walks
from tests.test_architecture import ROOT

STEPS = [step for rows in walks().values() for step in rows]


def functions_in(path: str) -> set[str]:
    """The functions of a file, methods with their class in front. A script is one by its name."""
    text = (ROOT / path).read_text()
    if path.endswith(".lua"):
        return {(ROOT / path).stem, *re.findall(r"^local function (\w+)", text, re.MULTILINE)}
    return set(_functions(ast.parse(text), ""))


def _functions(node: ast.AST, prefix: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _functions(child, f"{child.name}.")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield f"{prefix}{child.name}"


@pytest.mark.parametrize(("path", "function"), STEPS)
def test_a_step_names_a_function_of_its_file(path: str, function: str) -> None:
    assert (ROOT / path).is_file()
    assert function in functions_in(path)


def test_every_row_is_read_and_no_file_is_there_twice_in_one_walk() -> None:
    shown = [line for line in WALKS.read_text().splitlines() if line.startswith("| `")]
    assert len(shown) == len(STEPS)
    for title, rows in walks().items():
        files = [path for path, _ in rows]
        assert [path for path in files if files.count(path) > 1] == [], title
    assert len(walks()) == 3

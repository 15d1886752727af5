"""The glossary's names are those that the code defines, and words that were replaced stay away."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache

import pytest

from tests.test_architecture import ROOT

PACKAGES = ("shared", "gateway", "worker")
REPLACED = "bell|chore|crew|envelope|parcel|prospect|rota|utterance"
"""As a whole word or as part of a name; the glossary has the terms to use."""
OLD_KEY = "flotilla:{fleet}:chores"
"""Stored by format version 1, so later releases have to name it."""


def glossary() -> dict[str, list[str]]:
    """Term -> its names in the code."""
    table = (ROOT / "docs" / "pages" / "words.md").read_text()
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| (`[^|]+) \|$", table, re.MULTILINE)
    return {term: re.findall(r"`([\w.]+)`", cell) for term, cell in rows}


@cache
def defined() -> frozenset[str]:
    """The names of all modules, classes, functions, parameters, variables and attributes."""
    found: set[str] = set()
    for package in PACKAGES:
        for path in (ROOT / package).rglob("*.py"):
            found |= {path.stem, *names_in(path.read_text())}
    return frozenset(found)


def names_in(source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                yield node.name
            case ast.ClassDef():
                yield node.name
                values = [each for each in node.body if isinstance(each, ast.Assign)]
                targets = [each for value in values for each in value.targets]
                yield from (f"{node.name}.{ast.unparse(target)}" for target in targets)
            case ast.arg():
                yield node.arg
            case ast.Name(ctx=ast.Store()):
                yield node.id
            case ast.Attribute(ctx=ast.Store()):
                yield node.attr


def test_every_term_is_a_name_in_the_code() -> None:
    terms = glossary()
    assert 15 <= len(terms) <= 30
    assert {term: names for term, names in terms.items() if not defined().issuperset(names)} == {}


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("class AdvertisedSlots: ...", {"AdvertisedSlots"}),
        ("class State(Enum):\n    QUEUED = 1", {"State", "State.QUEUED", "QUEUED"}),
        (
            "def take(slot: int, *, n: int = 1) -> None: self.left = slot",
            {"take", "slot", "n", "left"},
        ),
        ("from shared import pool\nprint(pool)", set()),
    ],
)
def test_only_definitions_count(source: str, names: set[str]) -> None:
    assert set(names_in(source)) == names


def replaced_words(text: str) -> list[str]:
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text.replace(OLD_KEY, ""))
    return re.findall(rf"(?<![A-Za-z])(?:{REPLACED})s?(?![A-Za-z])", apart, re.IGNORECASE)


def test_replaced_words_do_not_come_back() -> None:
    files = [path for package in PACKAGES for path in (ROOT / package).rglob("*.*")]
    texts = [path for path in files if path.suffix in (".py", ".lua", ".md", ".js")]
    assert len(texts) > 300
    found = {
        str(path): replaced_words(path.read_text()) for path in texts if "demo" not in path.parts
    }
    assert {path: words for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    "text", ["the bells", "class BellRings: ...", "_next_bell = 1", "CREW = 2"]
)
def test_replaced_words_are_found_as_parts_of_names(text: str) -> None:
    assert replaced_words(text)
    assert not replaced_words(OLD_KEY + " a label, a screw, restored, belligerent")

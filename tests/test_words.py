"""One term per concept: private words that were replaced must not come back.

The README's glossary has the terms to use.
"""

from __future__ import annotations

import io
import re
import subprocess
import tokenize
from collections import Counter
from pathlib import Path

import pytest

from tests.test_architecture import ROOT

WORDS = (
    "bells?|chores?|converges?|crews?|deposit(?:s|ed)?|disown(?:s|ed|ing)?|ears|envelopes?|"
    "hear(?:s|d|ing)?|insist(?:s|ed|ing)?|nonces?|numb|offerers?|parcels?|prospects?|rings?|rang|"
    "rota|speakers?|utterances?|weed(?:s|ed|ing)?"
)
"""In names and in prose, in every file. Parts of names count: `_bell_rings`, `BellRings`."""
OUTBOX = "outbox(?:es)?"
"""Free for webhooks, where it has its usual meaning."""
NAMES = {
    "Bridge", "Claims", "Crew", "Departure", "Elsewhere", "Ending", "Flow", "Listener", "Look",
    "Notes", "Offer", "Offers", "PatientConsumer", "Piece", "Prospect", "Questions", "Sink",
    "Take", "Unit", "Want", "broker_place", "carry_out", "converge", "fall_behind", "feel",
    "fence_off", "fold", "folded", "give_back", "grow_old", "hand_back", "hand_out",
    "hand_over", "handed", "in_our_words", "intrude", "last_words", "let_go", "listeners",
    "mail", "news", "numb", "offer", "offers", "patient", "place_of", "promise", "put_right",
    "read_on", "remind", "rings_at", "said", "scalings", "sees", "settle", "speak", "speaks",
    "spoke", "spoken", "take_up", "talks", "tap", "tell", "tells", "told", "unfold", "unheard",
    "unsaid", "waits_for", "want", "write_down",
}  # fmt: skip
"""Not as a name in Python, where they do not describe the value."""
OLD_KEY = "flotilla:{fleet}:chores"
"""A key of format version 1, which later releases recognise and so have to name."""


def sources() -> list[str]:
    """The files that people write, without the demo model's text and CHANGELOG's old names."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    kinds = re.compile(
        r"\.(py|lua|md|ya?ml|json|toml|sh|conf|cfg|Dockerfile)$|(^|/)(Makefile|run)$"
    )
    but = re.compile(r"worker/demo/|load_tests/(results|baseline)|CHANGELOG|tests/test_words\.py")
    return [
        path
        for path in listed.stdout.split()
        if kinds.search(path) and not but.match(path) and (ROOT / path).exists()
    ]


def private_words(path: str) -> list[str]:
    """The private words in a file."""
    text = (ROOT / path).read_text().replace(OLD_KEY, "")
    words = WORDS if "webhook" in path else f"{WORDS}|{OUTBOX}"
    apart = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", text)  # parts of CamelCase
    found = re.findall(rf"(?<![A-Za-z])(?:{words})(?![A-Za-z])", apart, re.IGNORECASE)
    if path.endswith(".py"):
        tokens = tokenize.generate_tokens(io.StringIO(text).readline)
        found += [
            t.string for t in tokens if t.type == tokenize.NAME and t.string.strip("_") in NAMES
        ]
    return found


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="lists files with git")
def test_no_private_word_comes_back() -> None:
    found = {path: private_words(path) for path in sources()}
    assert {path: dict(Counter(words)) for path, words in found.items() if words} == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the bell rings", ["bell", "rings"]),
        ("class BellRings: ...\n", ["Bell", "Rings"]),
        ("_bell_rings = 1\n", ["bell", "rings"]),
        ("told = 1\n", ["told"]),
        ("self._hand_back()\n", ["_hand_back"]),
        ("old = 'flotilla:{fleet}:chores'\n", []),
        ("'he was told of strings and labels, years, spring'\n", []),
    ],
)
def test_words_are_found_as_parts_of_names(
    text: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.py").write_text(text)
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    assert private_words("some.py") == expected

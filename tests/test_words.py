"""One term per concept: private words that were replaced must not come back.

The README's glossary has the terms to use. `ALLOWED` lists what is left, by file; it only shrinks.
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
    "Crew", "Look", "Piece", "Sink", "Take", "Want", "fall_behind", "hand_out", "in_our_words",
    "news", "said", "speak", "speaks", "spoke", "tap", "tell", "told", "unsaid", "want",
}  # fmt: skip
"""Not as a name in Python, where they say nothing of what the value is."""
ALLOWED: dict[str, int] = {
    "shared/protocol/keys.py": 1,
    "tests/redis/test_acquire.py": 1,
    "tests/redis/test_cancel_expire_watch.py": 1,
    "tests/redis/test_emit.py": 4,
    "tests/redis/test_finish.py": 2,
    "tests/redis/test_pipelined_connection.py": 2,
    "tests/redis/test_release_and_reap.py": 2,
    "tests/redis/test_step_log.py": 2,
    "tests/redis/test_submit.py": 1,
    "tests/unit/gateway/reader_support.py": 2,
    "tests/unit/shared/test_chunk_template.py": 4,
    "tests/unit/shared/test_protocol_page.py": 1,
    "tests/unit/shared/test_step_log.py": 3,
}


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
    text = (ROOT / path).read_text()
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
    counts = {path: private_words(path) for path in sources()}
    too_many = {
        path: dict(Counter(words))
        for path, words in counts.items()
        if len(words) > ALLOWED.get(path, 0)
    }
    assert not too_many


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("the bell rings", ["bell", "rings"]),
        ("class BellRings: ...\n", ["Bell", "Rings"]),
        ("_bell_rings = 1\n", ["bell", "rings"]),
        ("told = 1\n", ["told"]),
        ("'he was told of strings and labels, years, spring'\n", []),
    ],
)
def test_words_are_found_as_parts_of_names(
    text: str, expected: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some.py").write_text(text)
    monkeypatch.setattr("tests.test_words.ROOT", tmp_path)
    assert private_words("some.py") == expected

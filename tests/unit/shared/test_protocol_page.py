"""PROTOCOL.md describes the code as it is: keys, scripts, states, frames."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

from shared.job.frames import ControlKind, FrameKind
from shared.job.record import WHOLE
from shared.store.redis import keys
from shared.store.redis.format_version import FORMAT_VERSION
from shared.store.redis.scripts.loader import NAMES
from tests.unit.shared.test_states import diagram

FOLDER = Path(inspect.getfile(keys)).parent
PAGE = (FOLDER / "PROTOCOL.md").read_text()


def header(name: str, part: str) -> str:
    """`part` (ARGV, Reply) of a Lua script's header, in one line."""
    lines = (FOLDER / "scripts" / f"{name}.lua").read_text().splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith(f"-- {part}: "))
    words = [lines[at].removeprefix(f"-- {part}: ")]
    for line in lines[at + 1 :]:
        if not line.startswith("--       ") or (part == "ARGV" and not words[-1].endswith(",")):
            break
        words.append(line.removeprefix("--       "))
    return " ".join(words)


def script_table() -> str:
    """The scripts with their arguments and replies, as the page shows them."""
    rows = ["| script | ARGV | reply |", "|---|---|---|"]
    for name in NAMES:
        reply = header(name, "Reply").replace("|", "\\|")
        rows.append(f"| `{name}` | {header(name, 'ARGV')} | {reply} |")
    return "\n".join(rows)


def frame_table() -> str:
    """The kinds of frames, as the page begins their rows."""
    return "\n".join(f"| {kind.value} | `{kind.name}` |" for kind in FrameKind)


def control_table() -> str:
    """The kinds of control messages, as the page begins their rows."""
    return "\n".join(f"| {kind.value} | `{kind.name}` |" for kind in ControlKind)


def keys_in_code() -> set[str]:
    """Every key and channel that keys.py can make, with its variable parts replaced."""
    shard_keys = {f"flotilla:{{s}}:{word}" for word in (*keys.LUA_WORDS, keys.PROBE_WORD)}
    source = inspect.getsource(keys).split('"""', 2)[2]
    fleet = set(re.findall(r'"(flotilla:\{+fleet\}+:[a-z_]+)', source))
    channels = {
        keys.TOKENS_CHANNEL,
        keys.CONTROL_CHANNEL,
        keys.HEARTBEAT_CHANNEL,
        keys.API_KEYS_CHANNEL,
    }
    old = {"flotilla:{fleet}:chores", "flotilla:{fleet}:scal"}  # of version 1, and a pattern
    return (
        shard_keys
        | {key.replace("{{", "{").replace("}}", "}") for key in fleet} - old
        | {channel.rstrip(":") for channel in channels}
        | {keys.celery_prefix("x").split(":x")[0]}
    )


def keys_in_page() -> set[str]:
    rows = re.findall(r"^\| `(flotilla:[^`]*)`", PAGE, re.MULTILINE)
    return {re.sub(r":<.*", "", row) for row in rows}


def test_every_key_is_on_the_page() -> None:
    assert keys_in_page() == keys_in_code()


def test_every_script_is_on_the_page_with_its_arguments_and_its_reply() -> None:
    assert script_table() in PAGE


def test_every_script_is_called() -> None:
    source = "".join(path.read_text() for path in FOLDER.rglob("*.py"))
    called = re.findall(r"\b(?:run|start\w*)\((?:self\._connection, )?\"(\w+)\"", source)
    assert set(called) == set(NAMES)


def test_the_states_are_on_the_page() -> None:
    assert diagram() in PAGE


def test_the_kinds_of_frames_are_on_the_page() -> None:
    rows = re.findall(r"^\| (\d+) \| `(\w+)` \|", PAGE, re.MULTILINE)
    expected = [(str(kind.value), kind.name) for kind in (*FrameKind, *ControlKind)]
    assert rows == expected


def test_the_fields_of_the_record_are_on_the_page() -> None:
    section = PAGE.split("## Record")[1].split("\n## ")[0]
    cells = re.findall(r"^\| (`\w+`(?:, `\w+`)*) \|", section, re.MULTILINE)
    fields = {field for cell in cells for field in re.findall(r"\w+", cell)}
    assert fields >= set(WHOLE)


def test_the_version_is_on_the_page() -> None:
    assert f"`FORMAT_VERSION` is {FORMAT_VERSION}" in PAGE

"""The text of the Lua scripts, as Redis loads them.

Words that Python and Lua share (keys, states, kinds of frames, field names) are defined once, in
Python, and put in front of the Lua text as tables.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from shared.job import placement
from shared.job.frames import ControlKind, FrameKind
from shared.job.lanes import ADAPTER_MARK, CLIENT_LANES, RETRY_LANE, SUSPECT_FROM, SUSPECT_LANE
from shared.job.record import LastLease, Request
from shared.job.responses import CONVERSATION_PREFIX
from shared.job.states import TRANSITIONS, JobState
from shared.job.step_log import STEPS
from shared.store.redis import keys
from shared.store.subscription import channel_commands

_FOLDER = Path(__file__).parent
COMMON = (
    "call",
    "ended",
    "deliveries",
    "log",
    "queue",
    "turns",
    "kept",
    "job",
    "placement",
    "conversations",
    "documents",
    "rate_limits",
    "idempotency",
    "deadlines",
    "lease",
    "requeue",
    "watchers",
)
"""The parts of `common/`, in the order in which they need each other."""

OF_CLUSTER = "slot_channels"
"""The part that follows them on a cluster."""

NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.lua")))
"""All scripts."""

# Redis refuses scripts that write when its memory is full, unless they are flagged. Every script
# but these lets jobs go on or end, so it must run.
_REFUSED_WHEN_FULL = frozenset(
    {
        "submit",
        "create_batch",
        "extend_conversation",
        "probe",
        "put_document",
    }
)


def _lua_table(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"['{name}'] = {value}" for name, value in pairs) + "}"


def _lua_list(words: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{word}'" for word in words) + "}"


def _tables() -> str:
    """The Lua tables that are made of Python's definitions."""
    commands = channel_commands()
    channels = [("tokens", keys.TOKENS_CHANNEL), ("control", keys.CONTROL_CHANNEL)]
    sources = [
        (event, _lua_table((state, "true") for state in sorted(transition.sources)))
        for event, transition in TRANSITIONS.items()
    ]
    tables = {
        "WORD": _lua_table((word, f"'{word}'") for word in keys.LUA_WORDS),
        "CHANNEL": _lua_table((name, f"'{channel}'") for name, channel in channels),
        "PUBLISH": f"'{commands.publish}'",
        "NUMSUB": f"'{commands.numsub}'",
        "GROUP": f"'{keys.GROUP}'",
        "RETRY_LANE": f"'{RETRY_LANE}'",
        "SUSPECT_LANE": f"'{SUSPECT_LANE}'",
        "SUSPECT_FROM": str(SUSPECT_FROM),
        "ADAPTER_MARK": f"'{ADAPTER_MARK}'",
        "CLIENT_LANES": _lua_list(CLIENT_LANES),
        "IS_CLIENT_LANE": _lua_table((lane, "true") for lane in CLIENT_LANES),
        "CONVERSATION_PREFIX": f"'{CONVERSATION_PREFIX}'",
        "REQUEST": _lua_list(Request._fields),
        "LEASE": _lua_list(LastLease._fields),
        "STATE": _lua_table((state, f"'{state}'") for state in JobState),
        "FROM": _lua_table(sources),
        "TO": _lua_table((event, f"'{t.target}'") for event, t in TRANSITIONS.items()),
        "KIND": _lua_table((kind.name.lower(), str(kind.value)) for kind in FrameKind),
        "CONTROL": _lua_table((kind.name.lower(), str(kind.value)) for kind in ControlKind),
        "STEPS": str(STEPS),
        "DEPTHS": "{" + ", ".join(map(str, placement.DEPTHS)) + "}",
        "PLACEMENT": _lua_table(
            (name, str(getattr(placement, name)))
            for name in ("HASH_BYTES", "MOST_PREFIXES", "KEPT_S", "SLOT_BLOCKS", "ALL_SLOTS_BLOCKS")
        ),
    }
    return "".join(f"local {name} = {value}\n" for name, value in tables.items())


def _common() -> str:
    names = [*COMMON, *([OF_CLUSTER] if keys.sharded() else [])]
    parts = [(_FOLDER / "common" / part).with_suffix(".lua").read_text() for part in names]
    return _tables() + "".join(parts)


def _body(name: str) -> str:
    return (_FOLDER / name).with_suffix(".lua").read_text()


def script(name: str) -> str:
    """The text of one script for EVALSHA."""
    head = "" if name in _REFUSED_WHEN_FULL else "#!lua flags=allow-oom\n"
    # A function of its own, as in the library: Lua has 200 local variables in a function at most.
    return f"{head}{_common()}begin(KEYS)\nreturn (function()\n{_body(name)}\nend)()"


def library() -> tuple[str, str]:
    """All scripts as one library of Redis functions: the prefix of the functions' names, the text.

    Redis runs the common part once, when it loads a library; it would run it at every call of a
    script, which takes longer than most scripts do. The prefix holds a digest of the text, so that
    processes of two releases can be loaded at the same time.
    """
    common = _common()
    bodies = {name: _body(name) for name in NAMES}
    digest = hashlib.sha256((common + "".join(bodies.values())).encode()).hexdigest()[:12]
    prefix = f"flotilla_{digest}"
    parts = [f"#!lua name={prefix}\n", common]
    for name, body in bodies.items():
        flags = "" if name in _REFUSED_WHEN_FULL else "'allow-oom'"
        parts.append(
            f"redis.register_function{{function_name='{prefix}_{name}', flags={{{flags}}},\n"
            f"callback=function(KEYS, ARGV)\nbegin(KEYS)\n{body}\nend}}\n"
        )
    return prefix, "".join(parts)

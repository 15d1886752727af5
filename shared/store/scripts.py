"""The Lua scripts: their text, and how they are called.

They are one library of Redis functions. Redis runs its common part once, when it loads the library.
The library's name has a digest of its text, so processes of two releases can use one Redis. A user
that may not load functions, and a Redis whose memory is full, get scripts for EVALSHA.

A Redis that has lost the scripts (FUNCTION FLUSH, a restart without its data) answers with
ScriptsMissing, a StoreUnavailable: nothing was carried out. `run` loads them and repeats the call;
who calls `send` sees a lost connection, which it handles anyway, and then calls `connect`.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from shared.job import rules
from shared.job.record import Request
from shared.job.responses import CONVERSATION_PREFIX
from shared.job.rules import CLIENT_LANES
from shared.platform.tasks import end
from shared.store import keys
from shared.store.connection import Argument, Connection, ScriptsMissing, SlotUnavailable
from shared.store.errors import StoreRefused, StoreUnavailable
from shared.store.servers import once_served
from shared.store.subscription import channel_command

_FOLDER: Final = Path(__file__).parent / "scripts"
_COMMON: Final = (
    "call", "kept", "log", "leases", "placement", "lines", "wake", "ended", "body", "job",
    "watchers", "idempotency", "conversations", "documents", "deliveries", "rate_limits",
)  # fmt: skip
"""In the order in which they need each other."""
NAMES: Final = tuple(sorted(path.stem for path in _FOLDER.glob("*.lua")))
PIECE_BYTES: Final = 1 << 16
"""Of the body of a request. Redis stands still while it carries out a command, so a larger body is
written and read in pieces, which lie in a hash of their own."""
_REFUSED_WHEN_FULL: Final = frozenset(
    {"submit", "store_body", "create_batch", "extend_conversation", "probe", "put_document"}
)
"""Redis refuses these when its memory is full. All others let jobs go on or end."""


def _common() -> str:
    """What all scripts share, behind what they share with Python."""
    request = ", ".join(f"'{name}'" for name in Request._fields)
    placed = ("HASH_BYTES", "MOST_PREFIXES", "KEPT_S", "SLOT_BLOCKS", "ALL_SLOTS_BLOCKS")
    tables = {
        "SHARDED": str(keys.sharded()).lower(),
        "PUBLISH": f"'{channel_command('PUBLISH')}'",
        "NUMSUB": f"'{channel_command('NUMSUB')}'",
        "LANES": "{" + ", ".join(f"'{lane}'" for lane in CLIENT_LANES) + "}",
        "REQUEST": "{" + request + "}",
        "CONVERSATION_PREFIX": f"'{CONVERSATION_PREFIX}'",
        "PIECE_BYTES": str(PIECE_BYTES),
        "DEPTHS": "{" + ", ".join(map(str, rules.DEPTHS)) + "}",
        "PLACEMENT": "{" + ", ".join(f"{n} = {getattr(rules, n)}" for n in placed) + "}",
    }
    head = "".join(f"local {name} = {value}\n" for name, value in tables.items())
    return head + "".join(_text(f"common/{part}") for part in _COMMON)


def _text(name: str) -> str:
    return (_FOLDER / f"{name}.lua").read_text()


def _function(name: str) -> str:
    # A function of its own: one has 200 local variables at most.
    return f"local reply = (function()\n{_text(name)}\nend)()\nfinish_call()\nreturn reply\n"


def _script(name: str) -> str:
    """The text of one script for EVALSHA."""
    head = "" if name in _REFUSED_WHEN_FULL else "#!lua flags=allow-oom\n"
    return f"{head}{_common()}begin(KEYS)\n{_function(name)}"


def library() -> tuple[str, str]:
    """The prefix of the functions' names, and the text of the library."""
    return _library(keys.sharded())


@cache
def _library(sharded: bool) -> tuple[str, str]:
    common, functions = _common(), {name: _function(name) for name in NAMES}
    digest = hashlib.sha256((common + "".join(functions.values())).encode()).hexdigest()[:12]
    prefix = f"flotilla_{digest}"
    parts = [f"#!lua name={prefix}\n{common}"]
    for name, body in functions.items():
        flags = "" if name in _REFUSED_WHEN_FULL else "'allow-oom'"
        parts.append(
            f"redis.register_function{{function_name='{prefix}_{name}', flags={{{flags}}},\n"
            f"callback=function(KEYS, ARGV)\nbegin(KEYS)\n{body}end}}\n"
        )
    return prefix, "".join(parts)


class Scripts:
    """The scripts of one Redis. Arguments and replies are those of the Lua files."""

    def __init__(self, redis: Any) -> None:
        self._redis = redis
        self._is_of_slot = redis.server.is_of_slot
        self.connection = Connection(redis.server, on_error=self._check_error)
        self.reads_page = asyncio.Lock()
        """Held while a page of a stored log is read: other streams go on between two of them."""
        self._tasks: set[asyncio.Task[Any]] = set()
        self._calls: dict[str, tuple[str, str]] = {}  # name -> command, and the name Redis knows

    async def close(self) -> None:
        """End the calls that wait, and close the connection."""
        await end(self._tasks)
        self.connection.close()

    async def connect(self) -> None:
        """Connect and load the scripts, as far as that was not done yet. Raises StoreError."""
        await self.connection.connect()
        if not self._calls:
            await self._load()

    def send(self, name: str, shard: int, arguments: Iterable[Argument]) -> asyncio.Future[Any]:
        """Call a script now, on the connection that there is. Raises StoreUnavailable without."""
        if not self._calls:
            raise StoreUnavailable("the scripts are not loaded")
        return self.connection.send(*self._calls[name], 1, keys.base(shard), *arguments)

    def start(self, name: str, shard: int, arguments: Sequence[Argument]) -> asyncio.Future[Any]:
        """`run`, without a coroutine where there is a connection."""
        if not self._is_of_slot:
            try:
                return self.send(name, shard, arguments)
            except StoreUnavailable:  # before anything was sent
                pass
        task = asyncio.create_task(self.run(name, shard, arguments))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, name: str, shard: int, arguments: Sequence[Argument]) -> Any:
        """The reply to a call. Raises StoreError; a slot that no node serves is waited for."""
        try:
            return await self.run_once(name, shard, arguments)
        except SlotUnavailable:
            return await once_served(partial(self.run_once, name, shard, arguments))

    async def command(self, *words: Argument) -> Any:
        """The reply to a plain command, as `run`."""
        try:
            return await self.connection.call(*words)
        except SlotUnavailable:
            return await once_served(partial(self.connection.call, *words))

    async def run_once(self, name: str, shard: int, arguments: Sequence[Argument]) -> Any:
        """`run` that does not wait: SlotUnavailable."""
        await self.connect()
        try:
            return await self.send(name, shard, arguments)
        except ScriptsMissing:
            await self._load()
            return await self.send(name, shard, arguments)

    async def _load(self) -> None:
        prefix, text = library()
        try:
            await self._redis.function_load(text)
        except StoreRefused as error:
            if "already exists" not in str(error):
                await self._load_scripts()
                return
        self._calls = {name: ("FCALL", f"{prefix}_{name}") for name in NAMES}

    async def _load_scripts(self) -> None:
        """Where functions can't be loaded."""
        pipe = self._redis.pipeline(transaction=False)
        for name in NAMES:
            pipe.script_load(_script(name))
        hashes = await pipe.execute()
        self._calls = {
            name: ("EVALSHA", sha if isinstance(sha, str) else sha.decode())
            for name, sha in zip(NAMES, hashes, strict=True)
        }

    def _check_error(self, error: Exception) -> None:
        if isinstance(error, ScriptsMissing):
            self._calls = {}

"""The Lua scripts as typed methods: no caller sees EVALSHA, KEYS or ARGV.

Each file in `lua/` documents its arguments, its answer and the invariant that it keeps. The words
that Python and Lua share (keys, states, kinds of frames) are written once, in Python, and put
before them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from shared import keys
from shared.channel import ControlKind, FrameKind
from shared.lanes import CLIENT_LANES, LANES, RETRY_LANE
from shared.line import Argument, Line
from shared.redis import TIMEOUT_S
from shared.states import TRANSITIONS

_FOLDER = Path(__file__).parent / "lua"
# Redis refuses scripts that write when its memory is full, unless they say that they must run:
# every script but submit lets jobs go on or end. Redis before 7 knows no such line.
_ALLOW_OOM = "#!lua flags=allow-oom\n"
_REFUSED_WHEN_FULL = frozenset({"submit"})


def _lua_table(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"['{name}'] = {value}" for name, value in pairs) + "}"


def _words() -> str:
    channels = [("tokens", keys.TOKENS_CHANNEL), ("control", keys.CONTROL_CHANNEL)]
    sources = [
        (event, _lua_table((state, "true") for state in sorted(transition.sources)))
        for event, transition in TRANSITIONS.items()
    ]
    tables = {
        "WORD": _lua_table((word, f"'{word}'") for word in keys.LUA_WORDS),
        "CHANNEL": _lua_table((name, f"'{channel}'") for name, channel in channels),
        "GROUP": f"'{keys.GROUP}'",
        "RETRY_LANE": f"'{RETRY_LANE}'",
        "CLIENT_LANES": "{" + ", ".join(f"'{lane}'" for lane in CLIENT_LANES) + "}",
        "FROM": _lua_table(sources),
        "TO": _lua_table((event, f"'{t.target}'") for event, t in TRANSITIONS.items()),
        "KIND": _lua_table((kind.name.lower(), str(kind.value)) for kind in FrameKind),
        "CONTROL": _lua_table((kind.name.lower(), str(kind.value)) for kind in ControlKind),
    }
    return "".join(f"local {name} = {value}\n" for name, value in tables.items())


def source(name: str, server_major: int) -> str:
    """The text of a script as it is loaded into a Redis of this major version."""
    head = _ALLOW_OOM if server_major >= 7 and name not in _REFUSED_WHEN_FULL else ""
    body = (_FOLDER / f"{name}.lua").read_text()
    return head + _words() + (_FOLDER / "prelude.lua").read_text() + body


NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.lua") if path.stem != "prelude"))


class Scripts:
    """The scripts of one Redis. All of them may be sent again after a lost reply."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._line = Line(redis, TIMEOUT_S)
        self._shas: dict[str, str] = {}
        self._texts: dict[str, str] = {}

    async def load(self) -> None:
        """Load every script. Needed once; done again by itself when Redis has forgotten them."""
        if not self._texts:
            info = await self._redis.info("server")
            major = int(str(info["redis_version"]).split(".")[0])
            self._texts = {name: source(name, major) for name in NAMES}
            self._shas = {
                name: hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
                for name, text in self._texts.items()
            }
        pipe = self._redis.pipeline(transaction=False)
        for text in self._texts.values():
            pipe.script_load(text)
        await pipe.execute()

    async def _run(self, name: str, shard: int, *args: Argument, patience_s: float = 0.0) -> Any:
        await self.ready()
        command = self._command(name, shard, *args)
        try:
            return await self._line.call(*command, patience_s=patience_s)
        except NoScriptError:
            await self.load()
            return await self._line.call(*command)

    async def ready(self) -> None:
        """Load the scripts if that was not done yet."""
        if not self._shas:
            await self.load()

    def _command(self, name: str, shard: int, *args: Argument) -> tuple[Argument, ...]:
        return ("EVALSHA", self._shas[name], 1, keys.base(shard), *args)

    def read_on(self) -> None:
        """Replies that were left waiting are read now; see Line.call."""
        self._line.read_on()

    async def close(self) -> None:
        """Close the connection; the Redis that was given stays open."""
        await self._line.close()

    async def submit(
        self, shard: int, packed: bytes, max_depth: int, seed: str, patience_s: float = 0.0
    ) -> list[Any]:
        """Flat `'ok' | 'exists' | 'full', jobs waiting in the lane, ...`; see lua/submit.lua."""
        reply = await self._run("submit", shard, packed, max_depth, seed, patience_s=patience_s)
        return cast(list[Any], reply)

    async def acquire(self, shard: int, *args: Argument) -> list[Any]:
        """`[now in us, job, ...]`; see lua/acquire.lua."""
        return cast(list[Any], await self._run("acquire", shard, *args))

    def acquire_command(self, shard: int, *args: Argument) -> tuple[Argument, ...]:
        """The same, for who sends it himself; the scripts must be `ready`."""
        return self._command("acquire", shard, *args)

    async def emit(
        self, shard: int, packed: bytes, *offer: Argument, patience_s: float = 0.0
    ) -> list[bytes]:
        """Flat `id, state, ...` of lost jobs; see lua/emit.lua."""
        reply = await self._run("emit", shard, packed, *offer, patience_s=patience_s)
        return cast(list[bytes], reply)

    async def renew(self, shard: int, worker: str, held: Iterable[str]) -> list[bytes]:
        """Flat `id, state, ...` of lost jobs; `held` is flat `id, nonce, ...`."""
        return cast(list[bytes], await self._run("renew", shard, worker, *held))

    async def release(
        self, shard: int, reason: str, blame: bool, held: Iterable[str]
    ) -> list[bytes]:
        """Flat `id, new state, ...`; `held` is flat `id, nonce, ...`; see lua/release.lua."""
        reply = await self._run("release", shard, reason, int(blame), *held)
        return cast(list[bytes], reply)

    async def disown(
        self, shard: int, pool: str, worker: str, known: bytes, older_ms: int
    ) -> list[bytes]:
        """Flat `id, new state, ...`; see lua/disown.lua."""
        reply = await self._run("disown", shard, pool, worker, known, older_ms, *LANES)
        return cast(list[bytes], reply)

    async def cancel(self, shard: int, job_id: str, tenant: str) -> str | None:
        """The job's state now; None if the tenant has no such job."""
        reply = await self._run("cancel", shard, job_id, tenant)
        return None if reply is None else reply.decode()

    async def expire(self, shard: int, limit: int) -> list[bytes]:
        """Ids of the jobs whose deadline has passed."""
        return cast(list[bytes], await self._run("expire", shard, limit))

    async def reap(self, shard: int, lease_ms: int, limit: int) -> list[bytes]:
        """Flat `id, new state, ...` of the jobs taken from silent workers."""
        reply = await self._run("reap", shard, lease_ms, limit, *LANES)
        return cast(list[bytes], reply)

    async def sweep(self, shard: int, limit: int, dead_consumer_ms: int) -> int:
        """How many index entries and consumers were taken out."""
        return int(await self._run("sweep", shard, limit, dead_consumer_ms, *LANES))

    async def repair(
        self, shard: int, word: str, place: str, members: Iterable[bytes]
    ) -> list[bytes | int]:
        """Flat `what was done, how often, ...`; see lua/repair.lua."""
        return cast(list[bytes | int], await self._run("repair", shard, word, place, *members))

    async def watch(self, shard: int, job_id: str, gateway: str, sees: bool) -> str | None:
        """The job's state; None if there is no such job."""
        reply = await self._run("watch", shard, job_id, gateway, int(sees))
        return None if reply is None else reply.decode()

"""The Lua scripts as typed methods: no caller sees FCALL, KEYS or ARGV.

Each file in `lua/` documents its arguments, its answer and the invariant that it keeps. The words
that Python and Lua share (keys, states, kinds of frames) are written once, in Python, and put
before them.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

from redis.asyncio import Redis
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import NoScriptError, ResponseError

from shared.platform.pipelined_connection import Argument, PipelinedConnection
from shared.platform.redis_client import TIMEOUT_S
from shared.platform.servers import Servers, server_index
from shared.protocol import keys
from shared.protocol.frames import ControlKind, FrameKind
from shared.protocol.lanes import CLIENT_LANES, LANES, RETRY_LANE
from shared.protocol.record import LastLease, Request
from shared.protocol.states import TRANSITIONS
from shared.protocol.step_log import STEPS

_FOLDER = Path(__file__).parent / "lua"
# Redis refuses scripts that write when its memory is full, unless they say that they must run:
# every one but submit lets jobs go on or end.
_REFUSED_WHEN_FULL = frozenset({"submit"})


def _lua_table(pairs: Iterable[tuple[str, str]]) -> str:
    return "{" + ", ".join(f"['{name}'] = {value}" for name, value in pairs) + "}"


def _lua_list(words: Iterable[str]) -> str:
    return "{" + ", ".join(f"'{word}'" for word in words) + "}"


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
        "CLIENT_LANES": _lua_list(CLIENT_LANES),
        "REQUEST": _lua_list(Request._fields),
        "LEASE": _lua_list(LastLease._fields),
        "FROM": _lua_table(sources),
        "TO": _lua_table((event, f"'{t.target}'") for event, t in TRANSITIONS.items()),
        "KIND": _lua_table((kind.name.lower(), str(kind.value)) for kind in FrameKind),
        "STEPS": str(STEPS),
        "CONTROL": _lua_table((kind.name.lower(), str(kind.value)) for kind in ControlKind),
    }
    return "".join(f"local {name} = {value}\n" for name, value in tables.items())


NAMES = tuple(sorted(path.stem for path in _FOLDER.glob("*.lua") if path.stem != "prelude"))


def _prelude() -> str:
    return _words() + (_FOLDER / "prelude.lua").read_text()


def script(name: str, *, flags: bool) -> str:
    """The text of a script for EVALSHA. `flags`: Redis knows the line for them (from 7 on)."""
    body = (_FOLDER / name).with_suffix(".lua").read_text()
    head = "#!lua flags=allow-oom\n" if flags and name not in _REFUSED_WHEN_FULL else ""
    return f"{head}{_prelude()}begin(KEYS)\n{body}"


def library() -> tuple[str, str]:
    """All scripts as a library of Redis functions: the prefix of their names, and its text.

    Redis keeps what the prelude makes; for a script it runs the prelude at every call, which takes
    longer than most scripts themselves. The name tells versions apart, so that two may run at once.
    """
    prelude = _prelude()
    bodies = {name: (_FOLDER / name).with_suffix(".lua").read_text() for name in NAMES}
    digest = hashlib.sha256((prelude + "".join(bodies.values())).encode()).hexdigest()[:12]
    prefix = f"flotilla_{digest}"
    parts = [f"#!lua name={prefix}\n", prelude]
    for name, body in bodies.items():
        flags = "" if name in _REFUSED_WHEN_FULL else "'allow-oom'"
        parts.append(
            f"redis.register_function{{function_name='{prefix}_{name}', flags={{{flags}}},\n"
            f"callback=function(KEYS, ARGV)\nbegin(KEYS)\n{body}\nend}}\n"
        )
    return prefix, "".join(parts)


class _Server:
    """The scripts of one Redis."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self.line = PipelinedConnection(redis, TIMEOUT_S, on_error=self._look)
        self._calls: dict[str, tuple[str, str]] = {}  # how each is called: a command, and a name

    async def load(self) -> None:
        prefix, text = library()
        try:
            await self._redis.function_load(text)
        except ResponseError as error:
            if "already exists" not in str(error):
                # Before Redis 7; or it is full, or this user may not.
                await self._load_scripts(flags="unknown command" not in str(error).lower())
                return
        self._calls = {name: ("FCALL", f"{prefix}_{name}") for name in NAMES}

    async def _load_scripts(self, *, flags: bool) -> None:
        pipe = self._redis.pipeline(transaction=False)
        for name in NAMES:
            pipe.script_load(script(name, flags=flags))
        hashes = await pipe.execute()
        self._calls = {
            name: ("EVALSHA", sha if isinstance(sha, str) else sha.decode())
            for name, sha in zip(NAMES, hashes, strict=True)
        }

    async def ready(self) -> None:
        if not self._calls:
            await self.load()

    async def run(self, name: str, shard: int, *args: Argument) -> Any:
        await self.ready()
        try:
            return await self.line.call(*self.command(name, shard, *args))
        except NoScriptError:
            await self.load()
            return await self.line.call(*self.command(name, shard, *args))

    def send(self, name: str, shard: int, *args: Argument) -> asyncio.Future[Any]:
        """Raises RedisConnectionError if there is no connection, or no script was loaded."""
        if not self._calls:
            raise RedisConnectionError("not connected")
        return self.line.send(*self.command(name, shard, *args))

    def command(self, name: str, shard: int, *args: Argument) -> tuple[Argument, ...]:
        return (*self._calls[name], 1, keys.base(shard), *args)

    def _look(self, error: Exception) -> None:
        if isinstance(error, NoScriptError):
            self._calls = {}


class Scripts:
    """The scripts, each call on its shard's server. All may be sent again after a lost reply."""

    def __init__(self, servers: Servers) -> None:
        self._servers = [_Server(redis) for redis in servers.all]

    def _of(self, shard: int) -> _Server:
        return self._servers[server_index(shard, len(self._servers))]

    async def load(self, shard: int) -> None:
        """Load every script. Needed once; done again by itself when Redis has forgotten them."""
        await self._of(shard).load()

    async def ready(self, shard: int) -> None:
        """Load the scripts if that was not done yet."""
        await self._of(shard).ready()

    async def _run(self, name: str, shard: int, *args: Argument) -> Any:
        return await self._of(shard).run(name, shard, *args)

    def losses(self, shard: int) -> int:
        """How often the connection was lost; see Line.losses."""
        return self._of(shard).line.losses

    def start(self, name: str, shard: int, *args: Argument) -> asyncio.Future[Any]:
        """As the method of that name, but where there is a connection no coroutine is needed.

        The result may be a NoScriptError then; the next call loads the scripts.
        """
        try:
            return self._of(shard).send(name, shard, *args)
        except RedisConnectionError:  # before anything was sent
            return asyncio.ensure_future(self._run(name, shard, *args))

    async def close(self) -> None:
        """Close its own connections; the servers that were given stay open."""
        for server in self._servers:
            await server.line.close()

    async def submit(self, shard: int, *args: Argument) -> list[Any]:
        """Flat `'ok' | 'exists' | 'full', jobs waiting in the lane, ...`; see lua/submit.lua."""
        return cast(list[Any], await self._run("submit", shard, *args))

    async def acquire(self, shard: int, *args: Argument) -> list[Any]:
        """`[now in us, slots left on offer, fence_token, job, ...]`; see lua/acquire.lua."""
        return cast(list[Any], await self._run("acquire", shard, *args))

    def acquire_command(self, shard: int, *args: Argument) -> tuple[Argument, ...]:
        """The same, for who sends it himself; the scripts must be `ready`."""
        return self._of(shard).command("acquire", shard, *args)

    async def emit(self, shard: int, *args: Argument) -> list[bytes] | None:
        """Flat `id, state, ...` of lost jobs; None if the fencing token is over; see lua/emit.lua."""
        await self.ready(shard)
        return cast(list[bytes] | None, await self.start_emit(shard, *args))

    def start_emit(self, shard: int, *args: Argument) -> asyncio.Future[Any]:
        """`start` of `emit`, which does not connect: with another connection the fencing token is over."""
        try:
            return self._of(shard).send("emit", shard, *args)
        except RedisConnectionError as error:
            reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
            reply.set_exception(error)
            return reply

    async def renew(self, shard: int, *args: Argument) -> list[bytes]:
        """`[fence_token, id, state, watchers, watched, ...]`; see lua/renew.lua."""
        return cast(list[bytes], await self._run("renew", shard, *args))

    async def read(self, shard: int, job_id: str, after: int | str) -> list[Any]:
        """`[generation, segment, ...]` of the job's log; see lua/read.lua."""
        return cast(list[Any], await self._run("read", shard, job_id, after))

    async def look(self, shard: int, job_ids: Iterable[str]) -> list[bytes]:
        """Flat `id, state, ...` of those jobs that are gone or have ended; see lua/look.lua."""
        return cast(list[bytes], await self._run("look", shard, *job_ids))

    async def release(
        self, shard: int, reason: str, blame: bool, held: Iterable[str]
    ) -> list[bytes]:
        """Flat `id, new state, ...`; `held` is flat `id, lease_id, ...`; see lua/release.lua."""
        reply = await self._run("release", shard, reason, int(blame), *held)
        return cast(list[bytes], reply)

    async def reject_unreceived(
        self, shard: int, pool: str, worker: str, known: bytes, older_ms: int
    ) -> list[bytes]:
        """Flat `id, new state, ...`; see lua/reject_unreceived.lua."""
        reply = await self._run("reject_unreceived", shard, pool, worker, known, older_ms, *LANES)
        return cast(list[bytes], reply)

    async def cancel(self, shard: int, job_id: str, tenant: str) -> str | None:
        """The job's state now; None if the tenant has no such job."""
        reply = await self._run("cancel", shard, job_id, tenant)
        return None if reply is None else reply.decode()

    async def expire(self, shard: int, limit: int) -> list[bytes]:
        """Ids of the jobs whose deadline has passed."""
        return cast(list[bytes], await self._run("expire", shard, limit))

    async def reap(
        self, shard: int, lease_ms: int, limit: int, longest_pause_ms: int | str
    ) -> list[bytes]:
        """Flat `id, new state, ...` of the jobs taken from silent workers; see lua/reap.lua."""
        reply = await self._run("reap", shard, lease_ms, limit, longest_pause_ms, *LANES)
        return cast(list[bytes], reply)

    async def sweep(self, shard: int, limit: int, dead_consumer_ms: int) -> int:
        """How many index entries and consumers were taken out."""
        return int(await self._run("sweep", shard, limit, dead_consumer_ms, *LANES))

    async def repair(
        self, shard: int, word: str, place: str, members: Iterable[bytes]
    ) -> list[bytes | int]:
        """Flat `what was done, how often, ids of some, ...`; see lua/repair.lua."""
        return cast(list[bytes | int], await self._run("repair", shard, word, place, *members))

    async def watch(self, shard: int, job_id: str, gateway: str, sees: bool) -> str | None:
        """The job's state; None if there is no such job."""
        reply = await self._run("watch", shard, job_id, gateway, int(sees))
        return None if reply is None else reply.decode()

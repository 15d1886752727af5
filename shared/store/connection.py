"""Connections to Redis, on which calls do not wait for each other's replies.

redis-py's own call takes a connection out of a pool, writes, waits, reads and puts it back, at five
times the CPU time of the call itself. Here calls are written at once, on one socket, and replies
are matched in their order. `Client` has redis-py's commands on such a connection.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

import hiredis
from redis.asyncio import Redis
from redis.asyncio.client import Pipeline
from redis.crc import key_slot

from shared.platform import redis_url
from shared.platform.redis_url import Address, RedisUrl, checks_host_name
from shared.store.errors import (
    StoreError,
    StoreRefused,
    StoreTimeout,
    StoreUnavailable,
    StoreUnwritable,
)

if TYPE_CHECKING:
    from shared.store.servers import Masters

log = logging.getLogger("flotilla.redis")

TIMEOUT_S = 5.0
"""Limit for a reply. A call that timed out may have been executed: scripts may be sent again."""
_LOOK_S = 0.5
"""While calls wait and nothing comes: between two questions whether the master is another one."""
_RETRY_S = 0.02
_SETTLED_S = 5.0
"""A connection that is younger is not ended because of another one's replica."""
_REFUSED_S = 0.2
"""For so long a slot counts as not served after a node has refused it: callers that wait try more
often."""
_MESSAGES = (b"message", b"smessage")
_INCOMPLETE = object()
_VERIFY = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}

Argument = str | bytes | int | float


class ScriptsMissing(StoreUnavailable):
    """Redis lacks the script or function of a call, so nothing was carried out.

    A StoreUnavailable, as callers repeat a call after a lost connection anyway.
    """


class SlotUnavailable(StoreUnavailable):
    """The server does not serve the key's slot now: nothing was carried out."""


class OnReplica(StoreUnwritable):
    """The server is a replica."""


_KINDS: dict[str, type[StoreError]] = {
    "NOSCRIPT": ScriptsMissing,
    "READONLY": OnReplica,
    **dict.fromkeys(("MOVED", "ASK", "TRYAGAIN", "CLUSTERDOWN", "UNBLOCKED"), SlotUnavailable),
    **dict.fromkeys(("OOM", "MISCONF", "LOADING", "NOREPLICAS", "MASTERDOWN"), StoreUnwritable),
}


def refused(reply: str) -> StoreError:
    """The error for an error reply."""
    code, _, message = reply.partition(" ")
    if message == "Function not found":
        return ScriptsMissing(reply)
    return _KINDS.get(code, StoreRefused)(reply)


class Server:
    """One Redis: where connections to it lead, and how they log in. With Sentinels, or on a
    cluster, it is the present master, which may be another one later."""

    def __init__(self, url: RedisUrl, masters: Masters | None = None, tag: str = "") -> None:
        """`masters` know its address; `tag`: on a cluster, a hash tag of its slot."""
        self.is_of_slot = url.kind == redis_url.CLUSTER
        """It has one slot of a cluster: calls may be refused while the slot is not served."""
        self.name = f"{url.name} {{{tag}}}" if self.is_of_slot else url.name
        """For log lines."""
        self.links: WeakSet[_Link] = WeakSet()
        """Its open connections."""
        self._url = url
        self._masters = masters
        self._slot = key_slot(tag.encode())
        self._refused_at = -_REFUSED_S
        if masters is not None:
            masters.members.add(self)

    @property
    def is_served(self) -> bool:
        """Whether no node has refused the slot lately."""
        return not self.is_of_slot or time.monotonic() - self._refused_at >= _REFUSED_S

    def tls(self) -> ssl.SSLContext | None:
        """For a new connection, as its files are now; None without TLS. Raises OSError."""
        if not self._url.tls:
            return None
        options = {name.removeprefix("ssl_"): text for name, text in self._url.options.items()}
        context = ssl.create_default_context()
        verify = _VERIFY[options.get("cert_reqs", "required")]
        context.check_hostname = verify is not ssl.CERT_NONE and checks_host_name(self._url)
        context.verify_mode = verify
        cas = [options.get(name) for name in ("ca_certs", "ca_path", "ca_data")]
        if any(cas):
            context.load_verify_locations(*cas)
        if certificate := options.get("certfile"):
            context.load_cert_chain(certificate, options.get("keyfile"), options.get("password"))
        if ciphers := options.get("ciphers"):
            context.set_ciphers(ciphers)
        return context

    @property
    def handshake(self) -> list[tuple[Argument, ...]]:
        """The first commands on a connection."""
        username, password, db = self._url.username or "default", self._url.password, self._url.db
        login = ("AUTH", username, password) if password else ()
        return [("HELLO", 2, *login), *([("SELECT", db)] if db else [])]

    async def address(self) -> Address | str:
        """Host and port, or the path of a socket. Raises StoreError."""
        if self._masters is not None:
            return await self._masters.read(self._slot)
        return self._url.path or self._url.nodes[0]

    def unreachable(self, problem: object) -> StoreError:
        """The error for a connection that can't be made. Another node may have the slot soon."""
        if self.is_of_slot:
            self.refused()
        kind = SlotUnavailable if self.is_of_slot else StoreUnavailable
        return kind(f"Redis {self.name}: {problem}")

    def refused(self) -> None:
        """It has refused a call since it does not serve the slot."""
        self._refused_at = time.monotonic()
        self.look()

    def look(self) -> None:
        """Another server may have taken its place."""
        if self._masters is not None:
            self._masters.look()

    def end_moved(self) -> None:
        """End all connections to servers that are not the master any more."""
        present = self._masters and self._masters.master(self._slot)
        for link in list(self.links):
            if present and link.address != present:
                link.end(StoreUnavailable(f"another server is the master of {self.name}"))

    def end_replicas(self) -> None:
        """It has become a replica: connecting anew finds its successor, for subscriptions, too."""
        for link in list(self.links):
            if link.opened_at < time.monotonic() - _SETTLED_S:
                link.end(StoreUnavailable("connected to a replica"))

    async def close(self) -> None:
        """The client is closed. The last one ends the questions for the masters."""
        if self._masters is not None:
            self._masters.members.discard(self)
            if not self._masters.members:
                await self._masters.close()


class _Link(asyncio.Protocol):
    """One socket, and the calls that wait for replies on it."""

    def __init__(self, owner: Connection, address: Address | str) -> None:
        self.address = address
        self.is_open = True
        self.opened_at = time.monotonic()
        self._owner = owner
        self._on_message = owner.on_message
        self._loop = asyncio.get_running_loop()
        self._transport: Any = None
        self._reader = hiredis.Reader(replyError=refused, notEnoughData=_INCOMPLETE)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._timer: asyncio.TimerHandle | None = None
        self._heard = False  # since the timer was set
        self._silent_s = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        if not isinstance(self.address, str):
            connected = transport.get_extra_info("socket")
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)

    def send(self, command: tuple[Argument, ...]) -> asyncio.Future[Any]:
        """Write a command now; the future is its reply."""
        data = hiredis.pack_command(command)  # type: ignore[arg-type]  # its stub says one
        reply: asyncio.Future[Any] = self._loop.create_future()
        self._waiting.append(reply)
        self._write(data)
        return reply

    def send_all(self, commands: Sequence[tuple[Argument, ...]]) -> list[asyncio.Future[Any]]:
        """The same for several, in one write: no command of others comes between."""
        data = b"".join(map(hiredis.pack_command, commands))  # type: ignore[arg-type]
        replies: list[asyncio.Future[Any]] = [self._loop.create_future() for _ in commands]
        self._waiting.extend(replies)
        self._write(data)
        return replies

    def _write(self, data: bytes) -> None:
        try:
            self._transport.write(data)
        except RuntimeError as error:
            # uvloop refuses to write on a connection that has ended, and calls `connection_lost`
            # later.
            self.connection_lost(error)
        else:
            if self._timer is None:
                self._heard, self._silent_s = False, 0.0
                self._set_timer()

    def data_received(self, data: bytes) -> None:
        self._heard = True
        gets = self._reader.gets
        self._reader.feed(data)
        while self.is_open and (reply := gets()) is not _INCOMPLETE:
            self._on_reply(reply)

    def _on_reply(self, reply: Any) -> None:
        """Hand a published message to its callback, any other reply to the call that waits."""
        if (
            self._on_message is not None
            and isinstance(reply, list)
            and reply
            and reply[0] in _MESSAGES
        ):
            try:
                self._on_message(reply[2])
            except Exception:
                log.exception("a published message could not be handled")
            return
        if not self._waiting:
            self.end(StoreUnavailable("Redis sent a reply that no call waits for"))
            return
        waiting = self._waiting.popleft()
        if not isinstance(reply, StoreError):
            if not waiting.done():
                waiting.set_result(reply)
            return
        _fail(waiting, reply)
        self._owner.on_refusal(self, reply)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = exc or "closed by the server"
        self.end(StoreUnavailable(f"Connection to Redis {self._owner.server.name} lost: {reason}"))

    def end(self, error: StoreError) -> None:
        """Close the socket at once; calls that wait fail with this error."""
        if not self.is_open:
            return
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()
        if self._timer is not None:
            self._timer.cancel()
        for reply in self._waiting:
            _fail(reply, type(error)(str(error)))
        self._waiting.clear()
        self._owner.on_end(self)

    def _set_timer(self) -> None:
        interval_s = min(_LOOK_S, self._owner.timeout_s)
        self._timer = self._loop.call_later(interval_s, self._check_silence, interval_s)

    def _check_silence(self, interval_s: float) -> None:
        """End it if calls wait and nothing has come for the time-out."""
        self._timer = None
        if not self._waiting:
            return
        self._silent_s = 0.0 if self._heard else self._silent_s + interval_s
        self._heard = False
        server = self._owner.server
        if self._silent_s >= self._owner.timeout_s:
            self.end(StoreTimeout(f"Redis {server.name} does not answer"))
            return
        if self._silent_s:
            server.look()
        self._set_timer()


def _fail(reply: asyncio.Future[Any], error: StoreError) -> None:
    if not reply.done():
        reply.set_exception(error)
        reply.exception()  # else asyncio logs the error if the reply is never awaited


class Connection:
    """Connects when it is first used, and again after a loss; calls in flight then fail."""

    def __init__(
        self,
        server: Server,
        timeout_s: float = TIMEOUT_S,
        on_message: Callable[[bytes], None] | None = None,
        on_error: Callable[[StoreError], None] | None = None,
    ) -> None:
        """`timeout_s`: a connection on which nothing comes for so long, while calls wait, is lost.

        `on_message` is called with each message on a subscribed channel, `on_error` with each
        error reply, before its caller gets it.
        """
        self.server = server
        self.timeout_s = timeout_s
        self.on_message = on_message
        self.losses = 0
        """How many connections were lost: with each, Redis may have lost a command."""
        self.lost = asyncio.Event()
        """Set while there is no connection."""
        self.lost.set()
        self._on_error = on_error
        self._link: _Link | None = None
        self._connecting = asyncio.Lock()
        self._failure: StoreError | None = None  # of the last attempt to connect
        self._failed_at = 0.0  # on the monotonic clock
        self._closed = False

    async def call(self, *command: Argument) -> Any:
        """The reply, bytes undecoded. Raises the store's errors; after a StoreUnavailable
        the command may have been carried out.
        """
        if self._link is None:
            await self.connect()
        return await self.send(*command)

    async def call_all(self, commands: Sequence[tuple[Argument, ...]]) -> list[Any]:
        """The replies, or what `call` would raise in their places. Raises StoreError if there is
        no connection, or was none before all replies were there."""
        if self._link is None:
            await self.connect()
        if (link := self._link) is None:
            raise self._no_connection()
        replies = await asyncio.gather(*link.send_all(commands), return_exceptions=True)
        for reply in replies:
            if type(reply) in (StoreUnavailable, StoreTimeout):
                raise reply
        return replies

    def send(self, *command: Argument) -> asyncio.Future[Any]:
        """Write a command now; the future is its reply, as of `call`.

        Raises StoreUnavailable if there is no connection.
        """
        link = self._link
        if link is None:
            raise self._no_connection()
        return link.send(command)

    def _no_connection(self) -> StoreError:
        return StoreUnavailable(f"Connection to Redis {self.server.name} lost")

    def give_up(self, reason: str) -> None:
        """End the connection at once; calls in flight fail. The next call connects again."""
        if self._link is not None:
            self._link.end(StoreUnavailable(reason))

    def close(self) -> None:
        """Calls in flight fail, and so do later ones."""
        self._closed = True
        self.give_up("closed")

    async def connect(self) -> None:
        """Connect, unless connected. Raises StoreError.

        An attempt that fails is that of all callers who wait for it, and of those who come within
        `_RETRY_S`: while a server is away, hundreds of streams wait for it.
        """
        if self._link is not None:
            return
        asked_at = time.monotonic()
        async with self._connecting:
            if self._link is not None:
                return
            if self._failure is not None and asked_at < self._failed_at + _RETRY_S:
                raise type(self._failure)(str(self._failure))
            try:
                async with asyncio.timeout(TIMEOUT_S):
                    self._link = await self._open()
            except (StoreError, OSError) as error:
                if isinstance(error, TimeoutError):
                    error = StoreTimeout(f"Redis {self.server.name} does not answer")
                elif isinstance(error, OSError):
                    error = self.server.unreachable(error)
                self._failure, self._failed_at = error, time.monotonic()
                raise error from None
            self._failure = None
            self.server.links.add(self._link)
            self.lost.clear()

    async def _open(self) -> _Link:
        """A new socket, logged in. Raises StoreError, OSError."""
        where, loop = await self.server.address(), asyncio.get_running_loop()
        link = _Link(self, where)
        try:
            if isinstance(where, str):
                await loop.create_unix_connection(lambda: link, where)
            else:
                await loop.create_connection(lambda: link, *where, ssl=self.server.tls())
            replies = link.send_all(self.server.handshake)
            login, *others = await asyncio.gather(*replies, return_exceptions=True)
            if not link.is_open:
                raise ConnectionResetError("closed by the server")
            if isinstance(login, StoreError):
                raise StoreUnavailable(f"Redis {self.server.name}: {login}")
            for reply in others:
                if isinstance(reply, StoreError):
                    raise reply
            if self._closed:
                raise StoreUnavailable(f"the connections to Redis {self.server.name} are closed")
        except BaseException:
            link.end(StoreUnavailable("not logged in"))
            raise
        return link

    def on_refusal(self, link: _Link, error: StoreError) -> None:
        """Its link has got an error reply."""
        if link is not self._link:
            return
        if self._on_error is not None:
            self._on_error(error)
        if isinstance(error, SlotUnavailable):
            self.server.refused()  # which ends this connection if the slot has moved
        elif isinstance(error, OnReplica):
            link.end(StoreUnavailable("connected to a replica"))
            self.server.end_replicas()

    def on_end(self, link: _Link) -> None:
        """Its link has ended."""
        if link is self._link:
            self._link = None
            self.losses += 1
            self.lost.set()


class Client(Redis):
    """redis-py's commands on a connection of ours, for short calls. Raises the store's errors, and
    never repeats a call: only the caller knows what may be repeated."""

    def __init__(self, server: Server) -> None:
        super().__init__(protocol=2)  # which makes no connection
        self.server = server
        self.name = server.name
        """Where it connects to, for log lines; no password."""
        self.calls = Connection(server)
        self.set_response_callback("TIME", _unix_s)

    async def execute_command(self, *arguments: Any, **options: Any) -> Any:
        """The reply of a command. Raises StoreError."""
        return self.result(arguments, options, await self.calls.call(*_words(arguments)))

    def result(self, arguments: tuple[Any, ...], options: Mapping[str, Any], reply: Any) -> Any:
        """The reply to a command as redis-py returns it."""
        callback = self.response_callbacks.get(arguments[0])
        if callback is None:
            return reply
        # `keys` is for redis-py's cache.
        return callback(reply, **{name: options[name] for name in options if name != "keys"})

    def pipeline(self, transaction: bool = True, shard_hint: str | None = None) -> Pipeline:
        """Commands that are sent together, with `transaction` carried out together, too."""
        return _Pipeline(self, transaction, shard_hint)

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        """Close the connection."""
        self.calls.close()
        await self.server.close()
        await asyncio.sleep(0)  # the event loop closes the sockets


class _Pipeline(Pipeline):
    def __init__(self, client: Client, transaction: bool, shard_hint: str | None) -> None:
        super().__init__(client.connection_pool, client.response_callbacks, transaction, shard_hint)
        self._client = client

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """The replies. Raises StoreError; with `raise_on_error` off, a StoreRefused takes the place
        of the reply, and others are raised all the same."""
        commands, self.command_stack = self.command_stack, []
        if not commands:
            return []
        words = [_words(arguments) for arguments, _ in commands]
        if self.is_transaction:
            *queued, replies = await self._client.calls.call_all([("MULTI",), *words, ("EXEC",)])
            if isinstance(replies, StoreError):  # since one of them was refused
                raise next((each for each in queued if isinstance(each, StoreError)), replies)
        else:
            replies = await self._client.calls.call_all(words)
        for reply in replies:
            is_value = isinstance(reply, StoreRefused) and not raise_on_error
            if isinstance(reply, StoreError) and not is_value:
                raise reply
        return [
            reply if isinstance(reply, StoreError) else self._client.result(*command, reply)
            for command, reply in zip(commands, replies, strict=True)
        ]


def _unix_s(response: Any, **_: Any) -> float:
    """The reply to TIME, in seconds."""
    return int(response[0]) + int(response[1]) / 1e6


def _words(arguments: tuple[Any, ...]) -> tuple[Argument, ...]:
    """As they are sent: redis-py has `CONFIG GET` in one."""
    return (*arguments[0].split(), *arguments[1:])

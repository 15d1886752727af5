"""What the model (model.py) is made of: tokens that show splices, and connections whose calls wait
until the model has Redis carry them out."""

from __future__ import annotations

import socket
from binascii import crc32
from collections.abc import Generator, Iterable, Sequence
from typing import Any, NamedTuple, cast
from unittest import mock

import hiredis

from shared.store import keys
from shared.store import queue as queue_module
from shared.store.queue import Queue


class Broken(Exception):
    """An invariant does not hold."""


def ensure(condition: object, what: str) -> None:
    """Raise Broken unless the condition holds."""
    if not condition:
        raise Broken(what)


# --- tokens ---


class Token(NamedTuple):
    """Depends on all tokens before and on the attempt, as sampling does: what is spliced shows."""

    place: int
    salt: int
    check: int

    @property
    def text(self) -> str:
        """As the engine makes it."""
        return f"{self.place} {self.salt} {self.check}"

    @property
    def chunk(self) -> bytes:
        """As the client gets it."""
        return b'data: {"text": "%b"}\n\n' % self.text.encode()

    @classmethod
    def read(cls, text: str) -> Token:
        """The opposite of `text`."""
        return cls(*map(int, text.split()))


def next_token(index: int, before: int, salt: int) -> Token:
    """The token behind one with the check `before`."""
    return Token(index, salt, crc32(b"%d %d %d" % (index, before, salt)))


def is_answer(tokens: Iterable[Token]) -> bool:
    """Whether these are the first tokens of one answer: nothing is missing, repeated or spliced."""
    before = 0
    for index, token in enumerate(tokens):
        if token != next_token(index, before, token.salt):
            return False
        before = token.check
    return True


def tokens_of(chunks: bytes) -> list[Token]:
    """The tokens in the chunks of a stream. Raises Broken if one is no chunk of this model."""
    try:
        return [Token.read(part.split('"')[3]) for part in chunks.decode().split("\n\n") if part]
    except (IndexError, ValueError) as error:
        raise Broken(f"a chunk is damaged: {chunks!r}") from error


# --- Redis ---


class Wire:
    """A connection to Redis, one call at a time: faster than a client."""

    def __init__(self, path: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(path)
        self._reader = hiredis.Reader()

    def __call__(self, *command: Any) -> Any:
        """The reply. Raises error replies."""
        return self.all([command])[0]

    def all(self, commands: Sequence[Sequence[Any]]) -> list[Any]:
        """The replies to several commands."""
        self._socket.sendall(b"".join(hiredis.pack_command(tuple(each)) for each in commands))
        replies = [self._next() for _ in commands]
        for reply in replies:
            if isinstance(reply, hiredis.ReplyError):
                raise reply
        return replies

    def _next(self) -> Any:
        while (reply := self._reader.gets()) is False:
            self._reader.feed(self._socket.recv(1 << 20))
        return reply

    def messages(self) -> list[tuple[str, bytes]]:
        """Channel and message of all that was published before; for a subscriber."""
        found = [self("PING", "here")]
        while found[-1] != [b"pong", b"here"]:
            found.append(self._next())
        return [(each[1].decode(), each[2]) for each in found[:-1] if each[0] == b"message"]

    def close(self) -> None:
        """Close it."""
        self._socket.close()


class Pending:
    """A call that was sent. Awaiting it gives the call to the model."""

    def __init__(self, *command: Any) -> None:
        self.command = command

    def __await__(self) -> Generator[Pending, Any, Any]:
        return (yield self)


class Connections:
    """What a process has in place of the servers, their scripts and its connections."""

    shards = 1
    groups = (range(1),)

    def of(self, shard: int) -> None:
        """See Servers."""

    def __init__(self, prefix: str) -> None:
        self.losses = 0
        self.connection = self
        self._prefix = prefix

    def send(self, name: str, shard: int, arguments: Iterable[Any]) -> Any:
        """See Scripts."""
        return Pending("FCALL", f"{self._prefix}_{name}", 1, keys.base(shard), *arguments)

    start = send

    async def run(self, name: str, shard: int, arguments: Iterable[Any]) -> Any:
        """See Scripts."""
        return await self.send(name, shard, arguments)

    async def command(self, *words: Any) -> Any:
        """See Scripts."""
        return await Pending(*words)


class ModelQueue(Queue):
    """The queue of a process."""

    def __init__(self, prefix: str) -> None:
        self.connections = Connections(prefix)
        with mock.patch.object(queue_module, "Scripts", return_value=self.connections):
            super().__init__(cast(Any, self.connections))


async def in_order(*works: Any) -> list[Any]:
    """In place of `run_together`, which needs an event loop."""
    return [await work for work in works]

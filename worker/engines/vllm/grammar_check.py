"""Checks a request's grammar (regular expression, schema, choice, ...) before vLLM gets it.

vLLM converts grammars on the event loop and compiles them in its engine, without a limit. Here a
grammar that is new is tried in another process first (grammar_process.py); the results are kept.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields
from hashlib import sha256
from typing import Any

from worker.engines.vllm.grammar_process import Limits, Try, serve

log = logging.getLogger("flotilla.grammar")

_KEPT = 4096
_WAIT_S = 9.0
"""For a reply, also while other grammars are tried. An answer must not take longer than 10 s."""


class GrammarRefused(ValueError):
    """The engine can't use a grammar; the text says why. VLLM answers a ValueError with 400."""


class GrammarsBusy(Exception):
    """Other grammars took all the time that an answer may take."""


class GrammarChecker:
    """Tries grammars in a process that `start` forks. One for each engine."""

    def __init__(self, limits: Limits) -> None:
        self.pid = 0
        self._limits = limits
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[int, asyncio.Future[str]] = {}
        self._waiting: dict[bytes, asyncio.Future[str]] = {}
        self._number = 0
        self._backend = ""
        """The library that the engine uses: that of the first grammar it got."""

    async def start(self, prepare: Callable[[], Try]) -> None:
        """Fork the process; before the engine, which starts threads. `prepare` runs in it."""
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                serve(theirs, self._limits, prepare)
            except BaseException:
                log.exception("the process that tries grammars failed")
            finally:
                os._exit(0)
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))

    async def check(self, structured: Any) -> None:
        """Return once the engine can use this grammar. Raises GrammarRefused and GrammarsBusy.

        `structured`: vLLM's StructuredOutputsParams.
        """
        grammar = {each.name: getattr(structured, each.name) for each in fields(structured)}
        question = {name: value for name, value in grammar.items() if not name.startswith("_")}
        text = json.dumps(question)
        key = sha256(text.encode()).digest()
        error = self._known.get(key)
        if error is None:
            error = await self._ask(key, text)
        else:
            self._known.move_to_end(key)
        if error:
            raise GrammarRefused(error)

    def forget(self) -> None:
        """Drop the kept results."""
        self._known.clear()

    def close(self) -> None:
        """End the process."""
        if self._reading is not None:
            self._reading.cancel()
        self._disconnect()

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()

    async def _ask(self, key: bytes, text: str) -> str:
        """What is wrong with a grammar, or an empty string."""
        if self._writer is None:  # the process has ended, which was logged
            return ""
        reply = self._waiting.get(key)
        if reply is None:
            self._number += 1
            reply = self._asked[self._number] = asyncio.get_running_loop().create_future()
            self._waiting[key] = reply
            reply.add_done_callback(lambda done: self._keep(key, done))
            head = f'{{"number": {self._number}, "backend": "{self._backend}", "grammar": '
            self._writer.write(f"{head}{text}}}\n".encode())
        done, _ = await asyncio.wait({reply}, timeout=_WAIT_S)
        if not done:
            raise GrammarsBusy("Too many grammars are being compiled; try again.")
        return reply.result()

    def _keep(self, key: bytes, done: asyncio.Future[str]) -> None:
        self._waiting.pop(key, None)
        if not done.cancelled():
            self._known[key] = done.result()
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                reply = json.loads(line)
                self._backend = self._backend or reply["backend"]
                self._asked.pop(reply["number"]).set_result(reply["error"])
        log.error("the process that tries grammars has ended: vLLM alone checks them now")
        self._disconnect()
        for future in self._asked.values():
            future.set_result("")

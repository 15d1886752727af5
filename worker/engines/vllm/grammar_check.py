"""Checks a request's grammar (regular expression, schema, choice, ...) before vLLM gets it.

vLLM converts grammars on the event loop and compiles them in its engine, mostly without a limit. So
each new one is tried in a process of its own first (grammar_process.py); the results are kept. That
process is started again when it has ended.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
from collections import OrderedDict
from dataclasses import fields
from hashlib import sha256
from multiprocessing.reduction import ForkingPickler
from typing import Any
from weakref import WeakValueDictionary

from worker.engines.interface import TENANT

log = logging.getLogger("flotilla.grammar")

_KEPT = 1024
"""Grammars whose results are kept."""
_STARTS = 3
"""So many processes in a row may end before one has tried a grammar."""


class GrammarRefused(ValueError):
    """The engine can't use a grammar; the text is why. VLLM answers a ValueError with 400."""


class GrammarChecker:
    """Has the grammars of one engine tried, one at a time; tenants take turns."""

    def __init__(self, config: Any) -> None:
        """`config`: vLLM's, for which it has registered how it is pickled."""
        self._config = bytes(ForkingPickler.dumps(config))
        self._process: asyncio.subprocess.Process | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._one = asyncio.Lock()
        self._one_of_tenant: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._number = 0
        self._backend = ""
        """The library that the engine uses: that of the first grammar it got."""

    async def start(self) -> None:
        """Start the process, which loads the tokenizer meanwhile."""
        self.close()
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "worker.engines.vllm.grammar_process"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._send(self._config)

    async def check(self, structured: Any) -> None:
        """Return once the engine can use this grammar. Raises GrammarRefused.

        `structured`: vLLM's StructuredOutputsParams.
        """
        grammar = {each.name: getattr(structured, each.name) for each in fields(structured)}
        given = {name: value for name, value in grammar.items() if not name.startswith("_")}
        key = sha256(json.dumps(given).encode()).digest()
        if key not in self._known:
            tenant = TENANT.get()
            async with self._one_of_tenant.setdefault(tenant, asyncio.Lock()), self._one:
                if key not in self._known:  # another job has asked meanwhile
                    self._known[key] = await self._try(given)
                    if len(self._known) > _KEPT:
                        self._known.popitem(last=False)
        self._known.move_to_end(key)
        if error := self._known[key]:
            raise GrammarRefused(error)

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _try(self, grammar: dict[str, Any]) -> str:
        """What is wrong with a grammar; empty if nothing is."""
        for _ in range(_STARTS):
            if self._process is None or self._process.returncode is not None:
                await self.start()
            reply = await self._answer(grammar)
            if reply is not None:
                self._backend = self._backend or reply["backend"]
                return str(reply["error"])
            log.error("the process that tries grammars has ended, and is started again")
        raise RuntimeError("the process that tries grammars does not start")

    async def _answer(self, grammar: dict[str, Any]) -> dict[str, Any] | None:
        """The process' answer; None if it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        self._number += 1
        question = {"number": self._number, "backend": self._backend, "grammar": grammar}
        try:
            self._send(json.dumps(question).encode())
            while line := await self._process.stdout.readline():
                reply: dict[str, Any] = json.loads(line)
                if reply["number"] == self._number:  # else that job did not wait for it
                    return reply
        except ConnectionError:
            pass
        await self._process.wait()
        return None

    def _send(self, data: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(len(data).to_bytes(8))
        self._process.stdin.write(data)

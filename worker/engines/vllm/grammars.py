"""Tries a request's grammar (regular expression, schema, choice, ...) before vLLM gets it.

vLLM converts grammars on the event loop and compiles them in its engine, mostly without a limit:
some take minutes or gigabytes, or end its process. So each new one is tried in a process of its own
first, `python -m worker.engines.vllm.grammars`: in a fork of it, with limits of time and memory, so
whatever happens there is an answer about the grammar, and nothing of it is kept. The results are.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import pickle
import resource
import signal
import sys
import time
from collections import OrderedDict
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import fields
from hashlib import sha256
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from shared.platform import settings as environment
from shared.platform.death_signal import request_signal
from worker.engines.interface import TENANT

log = logging.getLogger("flotilla.grammar")

_KEPT = 1024
"""Grammars whose results are kept."""
_STARTS = 3
"""So many processes in a row may end before one has tried a grammar."""
Attempt = Callable[[dict[str, Any], str], tuple[str, str]]
"""(structured outputs, engine's backend or an empty string) -> (error or an empty string, backend).
"""
_SECONDS = 4.0
"""CPU time of all threads that try a grammar."""
_STUCK_S = 30
"""Wall-clock time, which may be much longer on a busy machine."""
_MEMORY_BYTES = 256 << 20
_NICENESS = 5
_MAX_ERROR_CHARS = 2000
_TRIED_TOKENS = 16
_MAX_TOKEN_S = 0.1
"""CPU time of the engine's process for one token's mask: all sequences wait for it in each step."""
_MAX_CHECK_S = 0.1
"""CPU time of the worker's event loop: vLLM repeats the check there for every request."""


class GrammarRefused(ValueError):
    """The engine can't use a grammar; the text is why. VLLM answers a ValueError with 400."""


class GrammarChecker:
    """Has the grammars of one engine tried, one at a time; tenants take turns."""

    def __init__(self, config: Any) -> None:
        """`config`: vLLM's, for which it has registered how it is pickled."""
        self._config = bytes(ForkingPickler.dumps(config)).hex()
        self._process: asyncio.subprocess.Process | None = None
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._one = asyncio.Lock()
        self._one_of_tenant: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        self._backend = ""
        """The library that the engine uses: that of the first grammar it got."""

    async def start(self) -> None:
        """Start the process, which loads the tokenizer meanwhile."""
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "worker.engines.vllm.grammars"),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._send(self._config)

    async def check(self, structured: Any) -> None:
        """Return once the engine can use this grammar. Raises GrammarRefused.

        `structured`: vLLM's StructuredOutputsParams.
        """
        grammar = {each.name: getattr(structured, each.name) for each in fields(structured)}
        given = json.dumps({name: of for name, of in grammar.items() if not name.startswith("_")})
        key = sha256(given.encode()).digest()
        if key not in self._known:
            async with AsyncExitStack() as turn:
                of_tenant = self._one_of_tenant.setdefault(TENANT.get(), asyncio.Lock())
                for lock in (of_tenant, self._one):
                    await turn.enter_async_context(lock)
                if key not in self._known:  # another job has asked meanwhile
                    # A cancelled caller does not end the trial, which holds the locks.
                    trial = asyncio.create_task(self._try(key, given, turn.pop_all()))
                    await asyncio.shield(trial)
        self._known.move_to_end(key)
        if error := self._known[key]:
            raise GrammarRefused(error)

    def close(self) -> None:
        """End the process."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    async def _try(self, key: bytes, grammar: str, turn: AsyncExitStack) -> None:
        """Keep what is wrong with a grammar, as JSON; an empty text if nothing is."""
        async with turn:
            for _ in range(_STARTS):
                if self._process is None or self._process.returncode is not None:
                    await self.start()
                if reply := await self._answer(grammar):
                    self._known[key], backend = json.loads(reply)
                    self._backend = self._backend or backend
                    if len(self._known) > _KEPT:
                        self._known.popitem(last=False)
                    return
                log.error("the process that tries grammars has ended, and is started again")
            raise RuntimeError("the process that tries grammars does not start")

    async def _answer(self, grammar: str) -> bytes:
        """The process' answer; empty if it has ended."""
        assert self._process is not None
        assert self._process.stdout is not None
        with suppress(ConnectionError):
            self._send(json.dumps([self._backend, grammar]))
            if reply := await self._process.stdout.readline():
                return reply
        await self._process.wait()
        return b""

    def _send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")


def main() -> None:
    """Answer the worker's questions until it ends."""
    request_signal(signal.SIGKILL)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)  # it ends with the worker, which may drain first
    answers = os.dup(1)
    os.dup2(2, 1)  # libraries print
    # VLLM's own limit, of wall-clock time, would refuse what a busy machine compiles slowly.
    environment.set_engine_variable("VLLM_REGEX_COMPILATION_TIMEOUT_S", "0")
    attempt = _prepare(pickle.loads(bytes.fromhex(sys.stdin.readline())))  # noqa: S301, the worker's
    for line in sys.stdin:
        backend, grammar = json.loads(line)
        found = _try(json.loads(grammar), backend, attempt)
        os.write(answers, json.dumps(found).encode() + b"\n")


def _try(grammar: dict[str, Any], backend: str, attempt: Attempt) -> tuple[str, str]:
    """What is wrong with a grammar (empty: nothing), and the library that is for it."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            _limit()
            error, own = attempt(grammar, backend)
            os.write(write, json.dumps([error[:_MAX_ERROR_CHARS], own]).encode())
            os._exit(0)
        finally:
            os._exit(1)
    os.close(write)
    with os.fdopen(read, "rb") as answer:
        text = answer.read()
    _, status = os.waitpid(pid, 0)
    if status == 0:
        error, own = json.loads(text)
        return error, own
    if os.WTERMSIG(status) in (signal.SIGPROF, signal.SIGALRM):
        return f"The grammar can't be used: it takes more than {_SECONDS:g} s to compile.", ""
    return "The grammar can't be used: the compiler failed, or needed too much memory.", ""


def _limit() -> None:
    request_signal(signal.SIGKILL)
    os.nice(_NICENESS)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.setitimer(signal.ITIMER_PROF, _SECONDS)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(_STUCK_S)
    pages = int(Path("/proc/self/statm").read_text().split()[5])
    most = pages * resource.getpagesize() + _MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_DATA, (most, most))


def _prepare(config: Any) -> Attempt:
    """Load the tokenizer; the result tries one grammar. `config`: vLLM's."""
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.tokenizers import cached_tokenizer_from_config
    from vllm.v1.structured_output.backend_guidance import GuidanceBackend
    from vllm.v1.structured_output.backend_xgrammar import XgrammarBackend
    from vllm.v1.structured_output.request import get_structured_output_key

    tokenizer = cached_tokenizer_from_config(model_config=config.model_config)
    vocab_size = config.model_config.get_vocab_size()
    backends: dict[str, Any] = {}
    for name, kind in (("xgrammar", XgrammarBackend), ("guidance", GuidanceBackend)):
        with suppress(Exception):  # vLLM can't use it for this tokenizer either
            backends[name] = kind(config, tokenizer=tokenizer, vocab_size=vocab_size)

    def check(params: SamplingParams) -> None:
        params.verify(config.model_config, None, config.structured_outputs_config, tokenizer)

    with suppress(Exception):  # loads what all forks need
        check(SamplingParams(structured_outputs=StructuredOutputsParams(json_object=True)))

    def attempt(grammar: dict[str, Any], engine_backend: str) -> tuple[str, str]:
        params = SamplingParams(structured_outputs=StructuredOutputsParams(**grammar))
        structured = params.structured_outputs
        assert structured is not None
        began = time.process_time()
        try:
            check(params)
        except Exception as error:
            return str(error) or type(error).__name__, ""
        if time.process_time() - began > _MAX_CHECK_S:
            return "The grammar can't be used: it is too large.", ""
        own = str(structured._backend)  # noqa: SLF001
        backend = backends.get(engine_backend or own)
        if backend is None:  # another library of vLLM's, which an operator has chosen
            return "", own
        try:
            slowest = _first_tokens(backend, get_structured_output_key(structured))
        except Exception as error:
            return f"The grammar can't be compiled: {error or type(error).__name__}", ""
        if slowest > _MAX_TOKEN_S:
            return "The grammar can't be used: each token would take too long.", ""
        return "", own

    return attempt


def _first_tokens(backend: Any, key: Any) -> float:
    """Compile the grammar and follow it for some tokens; the longest time that one took."""
    compiled = backend.compile_grammar(*key)
    mask = backend.allocate_token_bitmask(1)
    slowest = 0.0
    for step in range(_TRIED_TOKENS):
        began = time.process_time()
        if compiled.is_terminated():
            break
        compiled.fill_bitmask(mask, 0)
        token = _allowed_token(mask[0].tolist(), step)
        if token is None:
            raise ValueError("it allows no token")
        if not compiled.accept_tokens("grammar", [token]):
            break
        slowest = max(slowest, time.process_time() - began)
    return slowest


def _allowed_token(words: list[int], step: int) -> int | None:
    """One of the tokens whose bits are set, another one in each step."""
    allowed = [index for index, word in enumerate(words) if word]
    if not allowed:
        return None
    index = allowed[(step * 7919) % len(allowed)]
    bits = [bit for bit in range(32) if words[index] >> bit & 1]
    return index * 32 + bits[(step * 31) % len(bits)]


if __name__ == "__main__":
    main()

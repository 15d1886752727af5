"""Checks a request's grammar (regular expression, schema, choice, ...) before vLLM gets it.

vLLM converts grammars on the event loop and compiles them in its engine, without a limit. Here a
grammar that is new is tried in another process first (trials.py); the results are kept.
"""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, fields
from hashlib import sha256
from typing import Any

from worker.engines.vllm.trial_process import Failure, Limits, Try
from worker.engines.vllm.trials import TrialFailed, Trials

Compile = Callable[[dict[str, Any], str], tuple[str, str]]
"""(structured outputs, engine's backend or an empty string) -> (error or an empty string, backend).
"""
_KEPT = 4096
_MAX_ERROR_CHARS = 2000


class GrammarRefused(ValueError):
    """The engine can't use a grammar; the text is why. VLLM answers a ValueError with 400."""


@dataclass
class _Asked:
    """A grammar that is being tried. `jobs`: how many wait for it."""

    task: asyncio.Task[str]
    jobs: int = 0


class GrammarChecker:
    """Tries grammars in a process that `start` forks. One for each engine."""

    def __init__(self, limits: Limits) -> None:
        self.trials = Trials(limits)
        self._too_slow = f"it takes more than {limits.seconds:g} s to compile"
        self._known: OrderedDict[bytes, str] = OrderedDict()
        self._asked: dict[tuple[str, bytes], _Asked] = {}
        self._backend = ""
        """The library that the engine uses: that of the first grammar it got."""

    async def start(self, prepare: Callable[[], Compile]) -> None:
        """Fork the process; before the engine, which starts threads. `prepare` runs in it."""
        await self.trials.start(lambda: _trying(prepare()))

    async def check(self, structured: Any, tenant: str = "") -> None:
        """Return once the engine can use this grammar. Raises GrammarRefused and TrialsBusy.

        `structured`: vLLM's StructuredOutputsParams.
        """
        grammar = {each.name: getattr(structured, each.name) for each in fields(structured)}
        question = {name: value for name, value in grammar.items() if not name.startswith("_")}
        text = json.dumps(question)
        key = sha256(text.encode()).digest()
        error = self._known.get(key)
        if error is None:
            error = await self._ask_with_others(tenant, key, text)
        else:
            self._known.move_to_end(key)
        if error:
            raise GrammarRefused(error)

    def forget(self) -> None:
        """Drop the kept results."""
        self._known.clear()

    def close(self) -> None:
        """End the process."""
        self.trials.close()

    async def _ask_with_others(self, tenant: str, key: bytes, text: str) -> str:
        """What is wrong with a grammar, or an empty string. Jobs of a tenant share a question."""
        asked = self._asked.get((tenant, key))
        if asked is None:
            asked = _Asked(asyncio.create_task(self._ask(tenant, key, text)))
            self._asked[tenant, key] = asked
        asked.jobs += 1
        try:
            return await asyncio.shield(asked.task)
        finally:
            asked.jobs -= 1
            if not asked.jobs and self._asked.get((tenant, key)) is asked:
                del self._asked[tenant, key]
                asked.task.cancel()  # does nothing if it is done

    async def _ask(self, tenant: str, key: bytes, text: str) -> str:
        content = f'{{"backend": "{self._backend}", "grammar": {text}}}'
        try:
            answer = await self.trials.ask(content.encode(), tenant)
        except TrialFailed as failed:
            slow = failed.failure is Failure.SLOW
            why = self._too_slow if slow else "the compiler failed, or needed too much memory"
            error = f"The grammar can't be used: {why}."
        else:
            if answer is None:  # no process was started: vLLM alone checks it
                return ""
            reply = json.loads(answer)
            error = reply["error"]
            self._backend = self._backend or reply["backend"]
        self._known[key] = error
        if len(self._known) > _KEPT:
            self._known.popitem(last=False)
        return error


def _trying(compile_grammar: Compile) -> Try:
    def attempt(content: bytes) -> str:
        question = json.loads(content)
        error, backend = compile_grammar(question["grammar"], question["backend"])
        return json.dumps({"error": error[:_MAX_ERROR_CHARS], "backend": backend})

    return attempt

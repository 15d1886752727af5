"""Calls hooks with a time limit, those that are not `async` in a thread, and counts the calls."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from prometheus_client import Counter

from shared.job.errors import HookFailed, Refused
from worker.hooks.interface import Answer, Hold, Refusal, Request
from worker.hooks.loading import Hook

log = logging.getLogger("flotilla.hooks")

_THREADS = 16


def failed() -> HookFailed:
    """The error for the client; the log has details."""
    return HookFailed("A hook of this model's pool has failed; the worker's log has details.")


class HookCaller:
    """Calls the hooks of one worker. `calls` has the labels `kind` and `outcome`."""

    def __init__(self, timeout_s: float, calls: Counter) -> None:
        self._timeout_s = timeout_s
        self._calls = calls
        # Not asyncio's own threads, which hooks that take long would block for all others.
        self._threads = ThreadPoolExecutor(_THREADS, "hooks")

    async def before(self, hooks: Sequence[Hook], request: Request) -> Request:
        """The request that the engine gets. Raises Refused and HookFailed."""
        for hook in hooks:
            result = await self._call(hook, request)
            if isinstance(result, Request):
                request = result
            elif result is not None:
                raise self._wrong_result(hook, result, "a Request, a Refusal or None")
            self._count(hook, "passed")
        return request

    async def after(self, hooks: Sequence[Hook], answer: Answer) -> bool:
        """Whether the answer may be passed on; False: it is to be held. As `before`."""
        number = len(answer.parts)
        for hook in hooks:
            result = await self._call(hook, answer)
            if isinstance(result, Hold):
                if answer.final:
                    raise self._wrong_result(hook, result, "the end of the answer: not HOLD")
                self._count(hook, "held")
                return False
            if result is not None and result is not answer:
                raise self._wrong_result(hook, result, "the same Answer, a Refusal, HOLD or None")
            if len(answer.parts) != number:
                raise self._wrong_result(hook, answer.parts, "as many parts as it got")
            self._count(hook, "passed")
        return True

    async def _call(self, hook: Hook, argument: Any) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await self._result(hook, argument)
        except Exception as error:
            self._count(hook, "failed")
            if isinstance(error, TimeoutError):
                log.error("hook %s failed: no result after %.1f s", hook.name, self._timeout_s)
            else:
                log.exception("hook %s failed", hook.name)
            raise failed() from error
        if isinstance(result, Refusal):
            self._count(hook, "refused")
            log.info("hook %s refused: %s", hook.name, result.code)
            raise Refused(result.message, result.status, result.code)
        return result

    async def _result(self, hook: Hook, argument: Any) -> Any:
        if inspect.iscoroutinefunction(hook.function):
            return await hook.function(argument)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, hook.function, argument)
        return await result if inspect.isawaitable(result) else result

    def _wrong_result(self, hook: Hook, result: object, expected: str) -> HookFailed:
        self._count(hook, "failed")
        log.error("hook %s returned %.100r; expected %s", hook.name, result, expected)
        return failed()

    def _count(self, hook: Hook, outcome: str) -> None:
        self._calls.labels(hook.kind, outcome).inc()

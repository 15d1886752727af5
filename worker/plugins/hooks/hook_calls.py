"""Imports the hooks that FLOTILLA_HOOKS names, and calls them with a time limit."""

from __future__ import annotations

import asyncio
import inspect
import logging
import pkgutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, Counter

from shared.fleet.hook_names import HookKind, parse_hook
from shared.job.errors import HookFailed, Refused
from shared.platform.settings import SettingsError
from worker.plugins.hooks.hook_types import Refusal, Request

log = logging.getLogger("flotilla.hooks")

_THREADS = 16


class Hook(NamedTuple):
    """One function; one that is not `async` runs in a thread. `name` is `module:function`."""

    kind: HookKind
    name: str
    function: Callable[[Any], Any]


def import_hooks(names: Iterable[str]) -> list[Hook]:
    """The hooks that FLOTILLA_HOOKS names. Raises SettingsError if one can't be imported."""
    return [Hook(kind, name, _function(name)) for kind, name in map(parse_hook, names)]


def failed(what: str) -> HookFailed:
    """The error for the client; a line in the log has the details."""
    log.error("%s", what, exc_info=True)
    return HookFailed("A hook of this model's pool has failed; the worker's log has details.")


class HookCalls:
    """Calls the hooks of one worker. `timeout_s`: time limit of one call."""

    def __init__(self, hooks: list[Hook], timeout_s: float, registry: CollectorRegistry) -> None:
        self.kinds = {hook.kind for hook in hooks}
        self._hooks = hooks
        self._timeout_s = timeout_s
        # Not asyncio's own threads, which hooks that take long would block for all others.
        self._threads = ThreadPoolExecutor(_THREADS, "hooks")
        self._calls = Counter(
            "flotilla_hook_calls_total",
            "Calls of the pool's hooks, by kind and how they ended",
            ["kind", "outcome"],
            registry=registry,
        )
        for kind in ("before", "after"):
            for outcome in ("passed", "refused", "failed"):
                self._calls.labels(kind, outcome)

    async def call(self, kind: HookKind, value: Any) -> Any:
        """`value`, a Request or an Answer, as the hooks leave it. Raises Refused and HookFailed."""
        for hook in self._hooks:
            if hook.kind == kind:
                result = await self._call(hook, value)
                value = value if result is None else result
        return value

    async def _call(self, hook: Hook, value: Any) -> Any:
        kinds = (Request, Refusal) if hook.kind == "before" else (Refusal,)
        try:
            async with asyncio.timeout(self._timeout_s):
                result = await self._result(hook, value)
            if result is not None and not isinstance(result, kinds):
                raise TypeError(f"returned {result!r:.100}")
        except Exception as error:  # whatever the hook raises
            self._calls.labels(hook.kind, "failed").inc()
            raise failed(f"hook {hook.name} failed (time limit {self._timeout_s:g} s)") from error
        if isinstance(result, Refusal):
            self._calls.labels(hook.kind, "refused").inc()
            log.info("hook %s refused: %s", hook.name, result.code)
            raise Refused(result.message, result.status, result.code)
        self._calls.labels(hook.kind, "passed").inc()
        return result

    async def _result(self, hook: Hook, value: Any) -> Any:
        if inspect.iscoroutinefunction(hook.function):
            return await hook.function(value)
        loop = asyncio.get_running_loop()
        result = await loop.run_in_executor(self._threads, hook.function, value)
        return await result if inspect.isawaitable(result) else result


def _function(name: str) -> Callable[[Any], Any]:
    try:
        found = pkgutil.resolve_name(name)
    except Exception as error:  # whatever the module raises
        raise SettingsError(
            f"FLOTILLA_HOOKS: {name} can't be imported ({type(error).__name__}: {error}); "
            "modules are found in the worker's working directory and on PYTHONPATH"
        ) from error
    if not callable(found):
        raise SettingsError(f"FLOTILLA_HOOKS: {name} is not a function")
    return found  # type: ignore[no-any-return]

"""Calls the hooks of a pool around each run: before the engine, and with its whole answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from functools import partial
from typing import Any

import msgspec
from prometheus_client import REGISTRY, CollectorRegistry

from shared.fleet.pool import Pool
from worker.core.plugin import Check, EngineAnswer
from worker.plugins.hooks.answer_parts import parts_of
from worker.plugins.hooks.hook_calls import HookCalls, failed, import_hooks
from worker.plugins.hooks.hook_types import Answer, Request

_TIMEOUT_S = 30.0
"""Time limit of one call of a hook."""


def hooks_of(pool: Pool) -> HooksPlugin | None:
    """The plug-in of a worker of this pool. Raises as `load_hooks`."""
    return load_hooks(pool.hooks, _TIMEOUT_S, REGISTRY)


def load_hooks(
    names: Iterable[str], timeout_s: float, registry: CollectorRegistry
) -> HooksPlugin | None:
    """The plug-in with the hooks of FLOTILLA_HOOKS; None if it names none.

    Raises SettingsError if one can't be imported.
    """
    calls = HookCalls(import_hooks(names), timeout_s, registry)
    return HooksPlugin(calls) if calls.kinds else None


class HooksPlugin:
    """Implements `AroundRuns`."""

    def __init__(self, calls: HookCalls) -> None:
        self._calls = calls

    async def before(self, path: str, job_id: str, body: bytes) -> tuple[bytes, Check | None]:
        """See `AroundRuns.before`."""
        request = Request(path, job_id, _json_object(body), body)
        if "before" in self._calls.kinds:
            streamed = bool(request.body.get("stream"))
            request = await self._calls.call("before", request)
            if bool(request.body.get("stream")) is not streamed:
                raise failed("a `before` hook has changed `stream`, which the client relies on")
            body = _encoded(request.body) if request.body else request.raw
        return body, partial(self._check, request) if "after" in self._calls.kinds else None

    async def _check(self, request: Request, answer: EngineAnswer) -> None:
        """Call the `after` hooks. Raises Refused and HookFailed."""
        try:
            # In threads, because all of them take long for a long answer.
            parts = await asyncio.to_thread(parts_of, answer.content_type, answer.body)
            if not parts:
                return
            before = await asyncio.to_thread(_fingerprint, parts)
            streamed = answer.content_type.startswith("text/event-stream")
            await self._calls.call("after", Answer(request, parts, streamed))
            changed = await asyncio.to_thread(_fingerprint, parts) != before
        except (TypeError, ValueError) as error:
            raise failed("an answer is no JSON, or a hook has made that of it") from error
        if changed:
            raise failed("an `after` hook has changed an answer, which it can only check")


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        value = msgspec.json.decode(body)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _encoded(body: dict[str, Any]) -> bytes:
    """What the engine gets. Raises HookFailed if a hook has put in what is no JSON."""
    try:
        return json.dumps(body).encode()
    except (TypeError, ValueError) as error:
        raise failed("a `before` hook has made a body that is no JSON") from error


def _fingerprint(parts: list[Any]) -> list[int]:
    """Hashes of the parts. Raises TypeError or ValueError if one is no JSON."""
    return [hash(msgspec.json.encode(part)) for part in parts]

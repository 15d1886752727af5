"""The engine's application with the pool's hooks around it.

Request path: `worker/core/job_run.py` -> here -> the engine's ASGI application.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from prometheus_client import Counter
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from shared.job.errors import HookFailed, Refused
from worker.engines.interface import JOURNAL
from worker.hooks.calling import HookCaller, failed
from worker.hooks.checked_answer import CheckedAnswer, send_error
from worker.hooks.held_output import json_object
from worker.hooks.interface import Request
from worker.hooks.loading import Hooks

log = logging.getLogger("flotilla.hooks")

T = TypeVar("T")

_DISCONNECT: Message = {"type": "http.disconnect"}


class _ClientLeft(Exception):
    """The job was aborted while hooks were running."""


class HookedApp:
    """An ASGI application. Its requests come with their whole body in one message (asgi.py)."""

    def __init__(self, engine: ASGIApp, hooks: Hooks, calls: Counter) -> None:
        """`calls` counts the calls of hooks by `kind` and `outcome`."""
        self._engine = engine
        self._hooks = hooks
        self._caller = HookCaller(hooks.timeout_s, calls)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request of a job."""
        raw = (await receive()).get("body", b"")
        request = Request(scope["path"], _job_id(scope), json_object(raw) or {}, raw)
        try:
            if self._hooks.before:
                request = await _unless_left(self._before(request), receive)
                raw = _body_of(request)
        except _ClientLeft:
            return
        except (Refused, HookFailed) as error:
            await send_error(send, error)
            return
        scope = {**scope, "headers": _headers(scope, len(raw))}
        if self._hooks.at_end:
            await self._answer_checked(request, raw, scope, receive, send)
        else:
            await self._engine(scope, _receive(raw, receive, asyncio.Event()), send)

    async def _before(self, request: Request) -> Request:
        streamed = bool(request.body.get("stream"))
        changed = await self._caller.before(self._hooks.before, request)
        if bool(changed.body.get("stream")) is not streamed:
            log.error("a `before` hook has changed `stream`, which the client relies on")
            raise failed()
        return changed

    async def _answer_checked(
        self, request: Request, raw: bytes, scope: Scope, receive: Receive, send: Send
    ) -> None:
        journal = JOURNAL.get()
        assert journal is not None, "set by the run of the job"
        answer = CheckedAnswer(self._caller, self._hooks, request, journal, send)
        token = JOURNAL.set(answer.output)
        try:
            await self._engine(scope, _receive(raw, receive, answer.stopped), answer.take)
            await _unless_left(answer.finish(), receive)
        except _ClientLeft:
            pass
        except (Refused, HookFailed) as error:
            await answer.fail(error)
        finally:
            answer.close()
            JOURNAL.reset(token)


def _body_of(request: Request) -> bytes:
    """What the engine gets. Raises HookFailed if a hook has put in what is no JSON."""
    if not request.body:
        return request.raw
    try:
        return json.dumps(request.body).encode()
    except (TypeError, ValueError) as error:
        log.exception("a `before` hook has made a body that is no JSON")
        raise failed() from error


def _headers(scope: Scope, length: int) -> list[tuple[bytes, bytes]]:
    others = [each for each in scope["headers"] if each[0] != b"content-length"]
    return [*others, (b"content-length", str(length).encode())]


def _job_id(scope: Scope) -> str:
    return next((v.decode() for name, v in scope["headers"] if name == b"x-request-id"), "")


def _receive(raw: bytes, outer: Receive, stopped: asyncio.Event) -> Receive:
    """The `receive` of the engine's application: the body, then the end of `outer` or `stopped`."""
    sent = False

    async def receive() -> Message:
        nonlocal sent
        if not sent:
            sent = True
            return {"type": "http.request", "body": raw, "more_body": False}
        waiting = {asyncio.ensure_future(outer()), asyncio.ensure_future(stopped.wait())}
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waiting:
                each.cancel()
        return _DISCONNECT

    return receive


async def _unless_left(work: Coroutine[Any, Any, T], receive: Receive) -> T:
    """The result of `work`; _ClientLeft, with `work` cancelled, once the job is aborted."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise _ClientLeft
    finally:
        task.cancel()
        left.cancel()

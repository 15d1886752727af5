"""Checks that vLLM can read a request's body fast, before it does so on the event loop.

`body_models.py` bounds what is wrong in a body. What is right takes time, too: one item of
`/v1/responses` 60 microseconds. So a body of many values is read in another process first
(trials.py), as vLLM would do it, and refused if that takes too long or too much memory.

Request path: `worker/core/job_run.py` -> here -> vLLM's application.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from http import HTTPStatus
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from worker.engines.interface import JOB
from worker.engines.vllm.body_models import stop_at_first_errors, validators
from worker.engines.vllm.trial_process import Failure, Limits, Try
from worker.engines.vllm.trials import TrialFailed, Trials, TrialsBusy

SMALL_BYTES = 4000
"""A shorter body can't have `MANY_VALUES`."""
MANY_VALUES = 2000
"""Values of JSON, roughly. So many take vLLM 0.32 at most 50 ms."""
FEW_VALUES = 32
"""Above it, a body is tried first that may have ended a worker, or whose route collects all errors.
"""
_MEMORY_BYTES = 400 << 20
"""A body of 32 MiB takes 290 MiB if one of its characters takes four bytes."""
_PATIENCE = 4
"""A child may take so many times the limit, so that what it took can be compared with it."""
_SLOW = "slow"


class BodyChecker:
    """Tries bodies in a process that `start` forks. One for each engine."""

    def __init__(self, seconds: float) -> None:
        """`seconds`: CPU time for reading one body."""
        self.trials = Trials(Limits(_PATIENCE * seconds, _MEMORY_BYTES))
        self._seconds = seconds

    async def start(self, build_app: Callable[[], Any]) -> None:
        """Fork the process; before the engine, which starts threads.

        `build_app` makes an application in it with the same routes as the one to protect.
        """
        await self.trials.start(lambda: reading(build_app(), self._seconds))

    async def check(self, path: str, body: bytes, tenant: str) -> tuple[int, str]:
        """Status and text of the error, or 0 and an empty text."""
        try:
            answer = await self.trials.ask(path.encode() + b"\n" + body, tenant)
            slow = answer == _SLOW
        except TrialsBusy:
            return HTTPStatus.SERVICE_UNAVAILABLE, (
                "Requests of this size can't be checked now; try again."
            )
        except TrialFailed as failed:
            if failed.failure is Failure.DIED:
                return HTTPStatus.BAD_REQUEST, (
                    "This request can't be processed: it takes more than "
                    f"{_MEMORY_BYTES >> 20} MiB to read, or can't be read at all."
                )
            slow = True
        if slow:
            return HTTPStatus.BAD_REQUEST, (
                f"This request can't be processed: it takes more than {self._seconds:g} s to read, "
                "in which all other answers would wait. Send fewer items."
            )
        return 0, ""


class CheckedBodies:
    """An ASGI application around vLLM's. Its requests come with their whole body in one message."""

    def __init__(self, app: Any, checker: BodyChecker) -> None:
        self._app: ASGIApp = app
        self._checker = checker
        self._bounded = stop_at_first_errors(app)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request."""
        bounded = scope["path"] in self._bounded and not JOB.get().suspicious
        if bounded and _content_length(scope) < SMALL_BYTES:
            return self._app(scope, receive, send)
        return self._check(scope, receive, send, MANY_VALUES if bounded else FEW_VALUES)

    async def _check(self, scope: Scope, receive: Receive, send: Send, values: int) -> None:
        message = await receive()
        body = message.get("body", b"")
        if _number_of_values(body) > values and _is_json(scope):
            check = self._checker.check(scope["path"], body, JOB.get().tenant)
            verdict = await _unless_left(check, receive)
            if verdict is None:
                return
            status, text = verdict
            if status:
                await _refuse(text, HTTPStatus(status), scope, receive, send)
                return
        sent = False

        async def receive_again() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return message

        await self._app(scope, receive_again, send)


def reading(app: Any, seconds: float) -> Try:
    """How the process reads a body, as vLLM does it. The answer is whether it is too slow."""
    stop_at_first_errors(app)
    by_path = validators(app)
    every = [field for fields in by_path.values() for field in fields]

    def read(content: bytes) -> str:
        path, _, body = content.partition(b"\n")
        for _ in range(2):  # the second time without what is slow in a process just forked
            began = time.process_time()
            with suppress(ValueError):
                value = json.loads(body)
                for field in by_path.get(path.decode(), every):
                    _validate(field, value)
            if time.process_time() - began <= seconds:
                return ""
        return _SLOW

    return read


def _validate(field: Any, value: Any) -> None:
    try:
        field.validate(value, {}, loc=("body",))
    except MemoryError:
        raise
    except Exception:  # of vLLM's own validators: then it refuses the request itself
        return


def _number_of_values(body: bytes) -> int:
    return body.count(b",") + body.count(b"{") + body.count(b"[")


def _content_length(scope: Scope) -> int:
    for name, value in scope["headers"]:
        if name == b"content-length":
            return int(value)
    return SMALL_BYTES  # not known


def _is_json(scope: Scope) -> bool:
    return any(name == b"content-type" and b"json" in value for name, value in scope["headers"])


async def _refuse(
    text: str, status: HTTPStatus, scope: Scope, receive: Receive, send: Send
) -> None:
    from starlette.responses import JSONResponse

    from worker.engines.vllm.error_response import create_error_response

    refusal = create_error_response(text, f"{status.phrase.replace(' ', '')}Error", status)
    await JSONResponse(refusal.model_dump(), status)(scope, receive, send)


async def _unless_left(check: Awaitable[tuple[int, str]], receive: Receive) -> Any:
    """The result of `check`; None, with it cancelled, once the client disconnects."""
    task, left = asyncio.ensure_future(check), asyncio.ensure_future(receive())
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        task.cancel()
        left.cancel()

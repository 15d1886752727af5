"""Questions to a process that tries what clients have sent (trial_process.py): the worker's side.

A few are tried at once; the tenants of the others take turns. A question whose request has ended is
not tried, and its child is killed if it runs already.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import logging
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from worker.engines.vllm.trial_process import CANCELLED, HEADER, Failure, Limits, Try, serve
from worker.engines.vllm.turns import Turns

log = logging.getLogger("flotilla.trials")

AT_ONCE = 4
"""Questions that are tried at once."""
MAX_WAITING = 64
"""Questions of one tenant that wait for a turn."""
WAIT_S = 9.0
"""For a reply, also while others are tried. An answer must not take longer than 10 s."""


class TrialFailed(Exception):
    """The child had no answer: `failure` is the reason."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure)
        self.failure = failure


class TrialsBusy(Exception):
    """The question was not tried: nothing is known about it.

    Others took all the time that an answer may take, too many of the tenant wait, or there is no
    process to try it.
    """


@dataclass(eq=False)
class _Question:
    number: int
    content: bytes
    reply: asyncio.Future[str | None]


class Trials:
    """Asks a process that `start` forks."""

    def __init__(self, limits: Limits) -> None:
        self.pid = 0
        self._limits = limits
        self._reading: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._numbers = itertools.count()
        self._turns: Turns[_Question] = Turns()
        self._running: dict[int, _Question] = {}

    async def start(self, prepare: Callable[[], Try]) -> None:
        """Fork the process; before the engine, which starts threads. `prepare` runs in it."""
        ours, theirs = socket.socketpair()
        self.pid = os.fork()
        if not self.pid:
            try:
                serve(theirs, self._limits, prepare)
            except BaseException:
                log.exception("the process that tries requests failed")
            finally:
                os._exit(0)
        theirs.close()
        reader, self._writer = await asyncio.open_connection(sock=ours)
        self._reading = asyncio.create_task(self._read(reader))

    async def ask(self, content: bytes, tenant: str) -> str | None:
        """The answer; None if the process was never started.

        Raises TrialFailed and TrialsBusy, the latter also once the process has ended.
        """
        if self._reading is None:
            return None
        if self._writer is None or self._turns.waiting(tenant) >= MAX_WAITING:
            raise TrialsBusy
        number = next(self._numbers) & 0xFFFFFFFF
        question = _Question(number, content, asyncio.get_running_loop().create_future())
        self._turns.add(tenant, question)
        self._send()
        try:
            async with asyncio.timeout(WAIT_S):
                return await question.reply
        except TimeoutError:
            raise TrialsBusy from None
        finally:
            self._turns.discard(tenant, question)
            if self._running.pop(number, None) and self._writer is not None:
                self._writer.write(HEADER.pack(number, CANCELLED))
            # Not at once: others may be cancelled at the same time.
            asyncio.get_running_loop().call_soon(self._send)

    def close(self) -> None:
        """End the process."""
        if self._reading is not None:
            self._reading.cancel()
        self._disconnect()

    def _send(self) -> None:
        """Have the process try as many as it may."""
        while self._writer is not None and len(self._running) < AT_ONCE:
            question = self._turns.take()
            if question is None:
                return
            self._running[question.number] = question
            self._writer.write(HEADER.pack(question.number, len(question.content)))
            self._writer.write(question.content)

    async def _read(self, reader: asyncio.StreamReader) -> None:
        with suppress(OSError):
            while line := await reader.readline():
                self._receive(json.loads(line))
        log.error(
            "the process that tries requests has ended: such requests get status 503 until "
            "this worker starts again"
        )
        self._disconnect()

    def _receive(self, reply: dict[str, str]) -> None:
        question = self._running.pop(int(reply["number"]), None)
        if question is None or question.reply.done():  # its request has ended
            return
        if "answer" in reply:
            question.reply.set_result(reply["answer"])
        elif reply["failure"] == Failure.UNTRIED:
            question.reply.set_exception(TrialsBusy())
        else:
            question.reply.set_exception(TrialFailed(Failure(reply["failure"])))

    def _disconnect(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            writer.close()
        questions = list(self._running.values())
        self._running.clear()
        while (question := self._turns.take()) is not None:
            questions.append(question)
        for question in questions:
            if not question.reply.done():
                question.reply.set_exception(TrialsBusy())

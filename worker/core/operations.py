"""Operator calls on one worker: carried out one after the other but for a drain, each once.

Path of a call: `gateway/apis/admin/broadcast.py` -> the worker's control channel -> here -> the
engine's own route -> the answer in Redis, where the gateway reads it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

from shared.api.operator_actions import (
    ACTIONS,
    DRAIN,
    IS_PAUSED,
    LOAD_ADAPTER,
    PAUSE,
    RESUME,
    SLEEP,
    UNLOAD_ADAPTER,
    WAKE_UP,
    WORKER_ACTIONS,
    OperatorAction,
    check_options,
)
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.errors import BadRequest
from shared.platform.tasks import run_together
from shared.store.errors import StoreError
from shared.store.operators import OperationAnswers
from worker.core.adapters import Adapters
from worker.core.claim import cheapest
from worker.core.engine_call import refusal
from worker.core.loop import WorkerLoop
from worker.core.membership import Membership

log = logging.getLogger("flotilla.operations")

_RETRY_S = 0.5
_TRIES = 20
_EMPTY_CHECK_S = 0.5
PAUSED = "paused by an operator"
ASLEEP = "the engine sleeps"


class Operations:
    """Carries out the operator calls that the control channel receives."""

    def __init__(
        self,
        member: Membership,
        loop: WorkerLoop,
        adapters: Adapters,
        stop: Callable[[], None],
    ) -> None:
        """`stop` has the worker drain and end; it may be called again."""
        self._worker_id = member.worker_id
        self._loop = loop
        self._adapters = adapters
        self._answers = OperationAnswers(member.queue.servers)
        self._paused = False
        self._asleep = False
        self._stop = stop
        self._waiting: asyncio.Queue[tuple[str, str, bytes]] = asyncio.Queue()
        self._own: dict[str, Callable[[Mapping[str, Any]], Awaitable[WorkerAnswer]]] = {
            LOAD_ADAPTER.name: self._adapters.load,
            UNLOAD_ADAPTER.name: lambda options: self._adapters.unload(options["lora_name"]),
            PAUSE.name: lambda _: self._pause(),
            RESUME.name: lambda _: self._resume(),
            IS_PAUSED.name: self._is_paused,
            SLEEP.name: self._sleep,
            WAKE_UP.name: self._wake_up,
            DRAIN.name: self._drain,
        }

    async def run(self) -> None:
        """Carry out the calls until cancellation."""
        await run_together(self._receive(), self._in_order())

    async def _receive(self) -> None:
        while True:
            call = await self._loop.control.operator_calls.get()
            if call[1] != DRAIN.name:
                self._waiting.put_nowait(call)
            # Not behind the others: a sleep may wait for the jobs that the drain hands over.
            elif (await self._carry_out(*call)).ok:
                self._stop()

    async def _in_order(self) -> None:
        while True:
            await self._carry_out(*await self._waiting.get())

    async def _carry_out(self, call_id: str, name: str, options: bytes) -> WorkerAnswer:
        began = time.monotonic()
        answer = await self._answer(name, options)
        answer = replace(answer, seconds=round(time.monotonic() - began, 3))
        log.info(
            "operator call %s: %s",
            name[:64],
            answer.message or "done",
            extra={"operation": call_id, "status": answer.status},
        )
        await self._send(call_id, answer)
        return answer

    async def follow(self, *, paused: bool) -> None:
        """Claim nothing, or claim again, as is desired of the whole pool."""
        if paused != self._paused:
            await (self._pause() if paused else self._resume())

    async def _answer(self, name: str, raw: bytes) -> WorkerAnswer:
        action = ACTIONS.get(name) or WORKER_ACTIONS.get(name)
        if action is None:  # a newer gateway may have sent it
            return refusal(501, f"This worker has no action {name[:64]!r}.")
        try:
            options = check_options(action, json.loads(raw))
            return await self._execute(action, options)
        except (BadRequest, ValueError) as error:
            return refusal(400, str(error))
        except StoreError as error:
            return refusal(503, f"Redis did not answer this worker: {error}")
        except Exception as error:
            log.exception("the operator call %s failed", name)
            return refusal(500, f"{type(error).__name__}: {error}")

    async def _execute(self, action: OperatorAction, options: Mapping[str, Any]) -> WorkerAnswer:
        own = self._own.get(action.name)
        return await own(options) if own else await self._loop.operate(action, options)

    async def _send(self, call_id: str, answer: WorkerAnswer) -> None:
        for _ in range(_TRIES):
            try:
                await self._answers.write(call_id, self._worker_id, answer)
                return
            except StoreError as error:
                log.warning("the answer to an operator call was not stored: %s", error)
                await asyncio.sleep(_RETRY_S)

    # --- drain, pause, sleep ---

    async def _drain(self, _: Mapping[str, Any]) -> WorkerAnswer:
        """Only answer: the drain begins after it is stored, because it closes the connections."""
        return WorkerAnswer(200, {"status": "draining", "jobs": len(self._loop.runs)})

    async def _pause(self) -> WorkerAnswer:
        await self._loop.pause(ASLEEP if self._asleep else PAUSED)
        self._paused = True
        return WorkerAnswer(200, {"status": "paused"})

    async def _resume(self) -> WorkerAnswer:
        self._paused = False
        await self._claim_again()
        return WorkerAnswer(200, {"status": "resumed"})

    async def _is_paused(self, _: Mapping[str, Any]) -> WorkerAnswer:
        return WorkerAnswer(200, {"is_paused": self._paused})

    async def _sleep(self, options: Mapping[str, Any]) -> WorkerAnswer:
        """Run no more jobs, then let the engine sleep.

        `mode` is vLLM's: `abort` releases the jobs that another worker can continue, `wait` lets
        all of them end here.
        """
        self._asleep, done = True, False
        runs = self._loop.runs
        try:
            await self._loop.pause(ASLEEP)
            while runs:
                if options.get("mode") != "wait":
                    movable = cheapest(self._loop.publisher.outputs())
                    await self._loop.hand_over.give_back(movable, "handed_over", "asleep")
                await runs.wait_until_empty(_EMPTY_CHECK_S)
            answer = await self._loop.operate(SLEEP, {"level": options.get("level", 1)})
            done = answer.ok
        finally:
            if not done:
                self._asleep = False
                await self._claim_again()
        return answer

    async def _wake_up(self, options: Mapping[str, Any]) -> WorkerAnswer:
        answer = await self._loop.operate(WAKE_UP, options)
        is_awake = not isinstance(answer.body, dict) or answer.body.get("status") != "sleeping"
        if answer.ok and is_awake:
            self._asleep = False
            await self._claim_again()
        return answer

    async def _claim_again(self) -> None:
        """Claim jobs, unless another reason not to is left."""
        self._loop.room.paused = ASLEEP if self._asleep else PAUSED if self._paused else ""
        await self._loop.claim_again()

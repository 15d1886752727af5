"""Sends an operator call to all workers of a pool and gathers their answers."""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gateway.core.fleet_view import FleetView
from shared.api.operator_actions import OperatorAction
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.states import WorkerState
from shared.store import subscription
from shared.store.operators import OperationAnswers
from shared.store.queue import pack_operation
from shared.store.servers import Servers

OUTCOMES = ("done", "failed", "incomplete")
"""The outcomes of operator calls."""

_REPEAT_S = 1.0
"""A worker without an answer gets the message again: pub/sub may have lost it."""
_FIRST_POLL_S = 0.01
_LAST_POLL_S = 0.25
_NO_ANSWER = WorkerAnswer(504, {"error": {"message": "no answer yet"}})
_GONE = WorkerAnswer(410, {"error": {"message": "the worker has ended"}})


@dataclass(frozen=True, slots=True)
class Operation:
    """An operator call and its outcome."""

    id: str
    pool: str
    action: str
    workers: Mapping[str, WorkerAnswer]
    """The answer of each worker that was in the pool, by its id."""

    @property
    def failed(self) -> dict[str, WorkerAnswer]:
        """The workers that could not do it. Those that have ended meanwhile are left out."""
        return {
            worker: answer
            for worker, answer in self.workers.items()
            if not answer.ok and answer is not _GONE
        }

    @property
    def outcome(self) -> str:
        """One of OUTCOMES; `incomplete`: some workers have not answered in time."""
        failed = self.failed
        if any(answer is _NO_ANSWER for answer in failed.values()):
            return "incomplete"
        return "failed" if failed else "done"

    @property
    def without_effect(self) -> bool:
        """All workers have answered that they have not done it."""
        answered = [answer for answer in self.workers.values() if answer is not _GONE]
        return bool(answered) and not any(answer.ok or answer is _NO_ANSWER for answer in answered)


def new_operation_id() -> str:
    """A random id."""
    return f"op_{secrets.token_hex(12)}"


class Broadcast:
    """Sends operator calls to the workers' control channels."""

    def __init__(self, servers: Servers, fleet: FleetView, timeout_s: float) -> None:
        """`timeout_s`: for the answers of all workers together."""
        self._servers = servers
        self._fleet = fleet
        self._timeout_s = timeout_s
        self._answers = OperationAnswers(servers)

    async def send(
        self, pool: str, action: OperatorAction, options: Mapping[str, Any], worker: str = ""
    ) -> Operation:
        """Send it to all workers that can receive it; return when all have answered, or in time.

        `worker`: only to this one. A worker that loads its model can't receive it, but reads its
        pool's desired state before it is ready. Raises StoreError.
        """
        await self._fleet.refresh()
        operation_id = new_operation_id()
        message = pack_operation(operation_id, action.name, json.dumps(dict(options)).encode())
        addressed = await self._workers(pool)
        if worker:
            addressed &= {worker}
        answers: dict[str, WorkerAnswer] = {}
        clock = time.monotonic
        poll_s, until, repeat_at = _FIRST_POLL_S, clock() + self._timeout_s, clock()
        while missing := addressed - answers.keys():
            if clock() >= repeat_at:
                answers |= dict.fromkeys(missing - await self._workers(pool), _GONE)
                await subscription.send(self._servers, missing, message)
                repeat_at = clock() + _REPEAT_S
            await asyncio.sleep(poll_s)
            poll_s = min(2 * poll_s, _LAST_POLL_S)
            answers |= await self._answers.read(operation_id)
            if clock() >= until:
                break
        found = {worker: answers.get(worker, _NO_ANSWER) for worker in sorted(addressed)}
        return Operation(operation_id, pool, action.name, found)

    async def _workers(self, pool: str) -> set[str]:
        """The ids of the pool's workers that are subscribed to their control channels."""
        workers = [
            worker.id
            for worker in self._fleet.workers_of(pool)
            if worker.state is not WorkerState.DRAINING
        ]
        return await subscription.listening(self._servers, workers)

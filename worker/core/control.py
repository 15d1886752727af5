"""Messages to a worker: hints on its control channel, and operators' calls.

Path of an operator's call: `gateway/apis/admin/` -> the control channel -> here -> the engine's own
route -> the answer in Redis, where the gateway reads it. Each is carried out once, one after the
other but for a drain. What is desired of the whole pool (adapters, paused or not) is read before
the worker is ready and every two seconds, which corrects what a lost message or a restart left
undone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

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
from shared.fleet.registry import HEARTBEAT_S
from shared.fleet.worker_answer import WorkerAnswer
from shared.job.errors import BadRequest
from shared.job.job import shard_in
from shared.platform.backoff import Backoff
from shared.platform.logs import RareWarning
from shared.platform.malformed import MalformedValues
from shared.store.errors import StoreError, until_answered
from shared.store.operators import DesiredPools, OperationAnswers
from shared.store.queue import Control, parse_control
from worker.core.claim import cheapest
from worker.core.jobs import Jobs
from worker.core.run import Exchange
from worker.engines.interface import NO_ROUTE, Engine

if TYPE_CHECKING:
    from worker.core.worker import Worker

log = logging.getLogger("flotilla.operations")

_REMEMBERED_CALLS = 256
_ANSWER_S = 10.0
"""Longest try to store an answer."""
_EMPTY_CHECK_S = 0.5
_ADAPTER_RETRY_S = 2.0, 300.0
_PAUSED = "paused by an operator"
_ASLEEP = "the engine sleeps"

Call = tuple[str, str, bytes]
"""An operator's call: id, action and options."""


class ControlChannel:
    """Handles the messages that a worker gets from the servers of all shards.

    All but operator calls are hints: a message that is lost costs a second at most, until the next
    claim.
    """

    def __init__(self, jobs: Jobs) -> None:
        self.operator_calls: asyncio.Queue[Call] = asyncio.Queue()
        self._received: deque[str] = deque(maxlen=_REMEMBERED_CALLS)
        self._jobs = jobs
        self._malformed = MalformedValues(jobs.metrics.malformed)
        self._tasks: set[asyncio.Task[None]] = set()

    def on_message(self, shards: Sequence[int], message: bytes) -> None:
        """Handle a message of the server of these shards; a malformed one is skipped, counted."""
        jobs = self._jobs
        try:
            kind, arguments = parse_control(message)
            match kind:
                case Control.CLAIM:
                    for shard in shards:
                        jobs.claims[shard].wake(int(arguments[0]))
                case Control.YIELD:
                    for shard in shards:
                        task = asyncio.create_task(jobs.make_room(shard, int(arguments[0])))
                        self._tasks.add(task)
                        task.add_done_callback(self._tasks.discard)
                case Control.LOST:
                    for name, generation in zip(arguments[::2], arguments[1::2], strict=True):
                        job_id = name.decode()
                        publisher = jobs.publisher.shards[shard_in(job_id)]
                        publisher.taken_away(job_id, int(generation))
                case Control.OPERATE:
                    call = arguments[0].decode(), arguments[1].decode(), arguments[2]
                    if call[0] not in self._received:  # it is repeated until it is answered
                        self._received.append(call[0])
                        self.operator_calls.put_nowait(call)
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            self._malformed.skip("control message", f"{len(message)} bytes", error)


class Operations:
    """Carries out operators' calls, and follows what is desired of the pool."""

    def __init__(self, worker: Worker, jobs: Jobs, channel: ControlChannel) -> None:
        self._worker = worker
        self._jobs = jobs
        self._calls = channel.operator_calls
        self._adapters = Adapters(worker, jobs)
        self._changing = asyncio.Lock()  # the adapters
        self._answers = OperationAnswers(jobs.queue.servers)
        self._desired = DesiredPools(jobs.queue)
        self._paused = False
        self._asleep = False
        self._turn = asyncio.Lock()  # of the calls
        self._warn = RareWarning(log)

    async def run(self) -> None:
        """Carry out calls, and follow what is desired, until cancellation."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow())
            while True:
                tasks.create_task(self._carry_out(*await self._calls.get()))

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(HEARTBEAT_S)
            await self.follow()

    async def prepare(self) -> None:
        """Do what is desired before the worker is ready."""
        await self._adapters.refresh()
        await self.follow()

    async def follow(self) -> None:
        """Do now what is desired; if Redis is unavailable, later."""
        try:
            desired = await self._desired.read(self._jobs.pool)
            if desired.switches.paused != self._paused:
                await self._pause(paused=desired.switches.paused)
            async with self._changing:
                await self._adapters.follow(desired.adapters)
        except StoreError as error:
            self._warn("what is desired of the pool could not be read: %s", error)

    async def _carry_out(self, call_id: str, name: str, options: bytes) -> None:
        # A drain does not wait: a sleep may wait for the jobs that it hands over.
        async with contextlib.nullcontext() if name == DRAIN.name else self._turn:
            began = time.monotonic()
            answer = await self._answer(name, options)
            answer = replace(answer, seconds=round(time.monotonic() - began, 3))
        fields = {"operation": call_id, "status": answer.status}
        log.info("operator call %s: %s", name[:64], answer.message or "done", extra=fields)
        try:
            async with asyncio.timeout(_ANSWER_S):
                await until_answered(
                    lambda: self._answers.write(call_id, self._jobs.worker_id, answer),
                    "the answer to an operator call was not stored",
                )
        except (StoreError, TimeoutError) as error:
            log.warning("the answer to an operator call was not stored: %s", error)
        if answer.ok and name == DRAIN.name:
            # After the answer, because it closes the connections.
            self._worker.drain()

    async def _answer(self, name: str, raw: bytes) -> WorkerAnswer:
        action = ACTIONS.get(name) or WORKER_ACTIONS.get(name)
        if action is None:  # a newer gateway may have sent it
            return _refusal(501, f"This worker has no action {name[:64]!r}.")
        try:
            return await self._execute(action, check_options(action, json.loads(raw)))
        except (BadRequest, ValueError) as error:
            return _refusal(400, str(error))
        except StoreError as error:
            return _refusal(503, f"Redis did not answer this worker: {error}")
        except Exception as error:
            log.exception("the operator call %s failed", name)
            return _refusal(500, f"{type(error).__name__}: {error}")

    async def _execute(self, action: OperatorAction, options: Mapping[str, Any]) -> WorkerAnswer:
        if action is DRAIN:
            return WorkerAnswer(200, {"status": "draining", "jobs": len(self._jobs.runs)})
        if action in (LOAD_ADAPTER, UNLOAD_ADAPTER):
            async with self._changing:
                if action is LOAD_ADAPTER:
                    return await self._adapters.load(options)
                return await self._adapters.unload(options["lora_name"])
        if action in (PAUSE, RESUME):
            await self._pause(paused=action is PAUSE)
            return WorkerAnswer(200, {"status": "paused" if self._paused else "resumed"})
        if action is IS_PAUSED:
            return WorkerAnswer(200, {"is_paused": self._paused})
        if action is SLEEP:
            return await self._sleep(options)
        answer = await operate(self._jobs, action, options)
        if action is WAKE_UP and answer.ok:
            is_awake = not isinstance(answer.body, dict) or answer.body.get("status") != "sleeping"
            self._asleep = self._asleep and not is_awake
            self._claim_again()
        return answer

    async def _pause(self, *, paused: bool) -> None:
        if paused:
            await self._jobs.pause(_ASLEEP if self._asleep else _PAUSED)
        self._paused = paused
        if not paused:
            self._claim_again()

    async def _sleep(self, options: Mapping[str, Any]) -> WorkerAnswer:
        """Run no more jobs, then let the engine sleep.

        `mode` is vLLM's: `abort` releases the jobs that another worker can continue, `wait` lets
        all of them end here.
        """
        self._asleep, done = True, False
        jobs = self._jobs
        try:
            await jobs.pause(_ASLEEP)
            while jobs.runs:
                if options.get("mode") != "wait":
                    await jobs.release(cheapest(jobs.publisher.outputs()), "asleep")
                await jobs.wait_until_idle(_EMPTY_CHECK_S)
            answer = await operate(jobs, SLEEP, {"level": options.get("level", 1)})
            done = answer.ok
        finally:
            if not done:
                self._asleep = False
                self._claim_again()
        return answer

    def _claim_again(self) -> None:
        """Claim jobs, unless another reason not to is left."""
        self._jobs.room.paused = _ASLEEP if self._asleep else _PAUSED if self._paused else ""
        self._jobs.claim_again()


class Adapters:
    """The LoRA adapters of one worker. One call at a time."""

    def __init__(self, worker: Worker, jobs: Jobs) -> None:
        self._jobs = jobs
        self._registration = worker.registration
        self._held: dict[str, str] = {}  # name -> path
        self._loaded_here: set[str] = set()  # not by the engine's own arguments
        self._retries: dict[str, tuple[float, Backoff]] = {}  # of those that can't be loaded

    async def refresh(self) -> None:
        """Read from the engine what it holds, and announce it."""
        cards = await model_cards(self._jobs.engine)
        self._held = {card["id"]: str(card["root"]) for card in cards if card.get("parent")}
        await self._registration.set_models(cards)

    async def follow(self, desired: Mapping[str, Mapping[str, Any]]) -> None:
        """Load and unload until the engine holds the desired adapters.

        One that can't be loaded is tried again later. Those of the engine's own arguments stay.
        """
        self._retries = {name: each for name, each in self._retries.items() if name in desired}
        for name, options in desired.items():
            if self._held.get(name) == options["lora_path"]:
                self._loaded_here.add(name)
            elif name not in self._retries or time.monotonic() >= self._retries[name][0]:
                await self.load({**options, "load_inplace": name in self._held})
        for name in self._loaded_here - desired.keys():
            await self.unload(name)

    async def load(self, options: Mapping[str, Any]) -> WorkerAnswer:
        """Load an adapter; one that is held under this name and path already is no error."""
        name, path = options["lora_name"], options["lora_path"]
        if not self._jobs.engine.capacity.max_loras:
            return _refusal(400, "The engine takes no adapters: start it with --enable-lora.")
        if self._held.get(name) == path and not options.get("load_inplace", False):
            return WorkerAnswer(200, f"LoRA adapter '{name}' is loaded already.")
        answer = await operate(self._jobs, LOAD_ADAPTER, options)
        if answer.ok:
            self._loaded_here.add(name)
            self._retries.pop(name, None)
            log.info("loaded the adapter %s from %s in %.2f s", name, path, answer.seconds)
            await self.refresh()
            return answer
        _, backoff = self._retries.get(name, (0.0, Backoff(*_ADAPTER_RETRY_S)))
        self._retries[name] = time.monotonic() + backoff.next_delay_s(), backoff
        log.warning("the adapter %s could not be loaded: %s", name, answer.message)
        return answer

    async def unload(self, name: str) -> WorkerAnswer:
        """Unload an adapter; one that is not held is no error."""
        self._loaded_here.discard(name)
        self._retries.pop(name, None)
        if name not in self._held:
            return WorkerAnswer(200, f"LoRA adapter '{name}' is not loaded.")
        answer = await operate(self._jobs, UNLOAD_ADAPTER, {"lora_name": name})
        log.info("unloaded the adapter %s: %s", name, answer.message or "done")
        await self.refresh()
        return answer


# --- the engine's own routes that are no jobs ---


async def model_cards(engine: Engine) -> list[dict[str, Any]]:
    """The entries of the engine's own /v1/models, adapters included.

    Those of adapters get the context length of their base model, which vLLM leaves out.
    """
    exchange = Exchange()
    await exchange.run(engine, "GET", "/v1/models")
    cards: list[dict[str, Any]] = json.loads(bytes(exchange.body))["data"]
    for card in cards:
        if card.get("max_model_len") is None:
            card["max_model_len"] = cards[0].get("max_model_len")
    return cards


async def operate(jobs: Jobs, action: OperatorAction, options: Mapping[str, Any]) -> WorkerAnswer:
    """Have the engine do what an operator asks for. An error that it raises is an answer, too."""
    exchange, began = Exchange(), time.monotonic()
    body = b"" if action.in_query else json.dumps(dict(options)).encode()
    query = action.query(options)
    jobs.operator_calls += 1
    try:
        await exchange.run(jobs.engine, action.method, action.engine_path, body, query=query)
    except Exception as error:
        found = _refusal(500, f"The engine failed: {error}")
    else:
        found = _answer_of(action, exchange)
    finally:
        jobs.operator_calls -= 1
    return replace(found, seconds=time.monotonic() - began)


def _answer_of(action: OperatorAction, exchange: Exchange) -> WorkerAnswer:
    text = bytes(exchange.body).decode(errors="replace")
    if exchange.status == 404 and NO_ROUTE in text:
        hint = "; start it with --profiler-config" if "profile" in action.name else ""
        return _refusal(501, f"The engine does not have {action.engine_path}{hint}.")
    try:
        return WorkerAnswer(exchange.status or 500, json.loads(text) if text else None)
    except ValueError:
        return WorkerAnswer(exchange.status or 500, text)


def _refusal(status: int, message: str) -> WorkerAnswer:
    """The answer of a worker that does not do it."""
    return WorkerAnswer(status, {"error": {"message": message}})

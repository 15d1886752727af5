"""An engine without a model, for load and fault tests: timing by arithmetic.

A step of the continuous batch takes `max(sim_step_ms, sim_step_us_per_seq * batch)` plus
`sim_prefill_us_per_token` for every prompt token prefilled in it, and gives one token to every
running sequence whose prefill has ended. The same prompt, seed and index give the same answer.
Every answer starts with `[simulated]`. Where the KV cache is full, the sequence admitted last goes
back to waiting. A job of an earlier worker is continued: the tokens of the past are prefilled with
the prompt.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable

from starlette.types import Receive, Scope, Send

from shared.fleet.pool import Pool
from shared.platform.settings import SettingsError
from worker.engines.interface import Capacity, Load
from worker.engines.simulated.api import SimulatedApi
from worker.engines.simulated.batch import Batch
from worker.engines.simulated.engine_faults import EngineFaults
from worker.engines.simulated.generation import Disconnected, EngineDeadError, Generation
from worker.engines.simulated.prefix_cache import PrefixCache
from worker.engines.simulated.simulated_settings import SimulatedSettings

_log = logging.getLogger(__name__)
_POOL = Pool(served_names=("simulated",), engine="simulated")


class SimulatedEngine:
    """An `Engine` (worker/engines/interface.py) that runs in the event loop of `start`'s caller."""

    kind = "simulated"

    def __init__(self, settings: SimulatedSettings, pool: Pool = _POOL) -> None:
        """Raises SettingsError if the settings contradict each other or name an unknown fault."""
        if settings.sim_kv_tokens < settings.sim_max_model_len:
            raise SettingsError(
                f"FLOTILLA_SIM_KV_TOKENS={settings.sim_kv_tokens}: one sequence of "
                f"FLOTILLA_SIM_MAX_MODEL_LEN={settings.sim_max_model_len} tokens must fit"
            )
        self.on_step: Callable[[], None] = lambda: None
        self._settings = settings
        self._faults = EngineFaults.parse(settings.sim_faults)
        self._capacity = Capacity(
            max_num_seqs=settings.sim_max_num_seqs,
            max_model_len=settings.sim_max_model_len,
            max_loras=settings.sim_max_loras,
            kv_tokens=settings.sim_kv_tokens,
        )
        blocks = settings.sim_cache_blocks
        self._batch = Batch(
            settings.sim_max_num_seqs,
            settings.sim_kv_tokens,
            settings.sim_prefill_tokens_per_step,
            PrefixCache(blocks) if blocks else None,
        )
        self._api = SimulatedApi(pool, self)
        self._steps = 0
        self._still_until = 0.0
        self._has_work = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._dead = False

    async def start(self) -> None:
        """Start taking steps."""
        if self._faults.die_on_signal is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(signal.Signals[self._faults.die_on_signal], self.close)
        await asyncio.sleep(self._faults.slow_start_s)
        self._loop_task = asyncio.create_task(self._run(), name="simulated-engine")

    @property
    def capacity(self) -> Capacity:
        """See `Engine.capacity`."""
        return self._capacity

    @property
    def dead(self) -> bool:
        """See `Engine.dead`."""
        return self._dead

    def load(self) -> Load:
        """See `Engine.load`."""
        return Load(len(self._batch), self._batch.kv_used / self._settings.sim_kv_tokens)

    def __call__(self, scope: Scope, receive: Receive, send: Send) -> Awaitable[None]:
        """Answer one HTTP request."""
        return self._api(scope, receive, send)

    def close(self) -> None:
        """Stop; requests that have not ended are answered as by a dead engine."""
        if self._loop_task is not None:
            self._loop_task.cancel()
        self._die()

    def submit(self, generation: Generation) -> None:
        """Queue the generation for the batch. Raises EngineDeadError.

        Raises Disconnected if the engine refuses to continue it.
        """
        if self._dead:
            raise EngineDeadError
        if generation.continued and generation.journal is not None:
            if self._faults.refuse_past:
                generation.journal.refuse_past("FLOTILLA_SIM_FAULTS has refuse_past")
                raise Disconnected
            generation.journal.continued("prefill", 0)
        self._batch.add([each for each in generation.sequences if each.finish_reason is None])
        self._has_work.set()

    def abort(self, generation: Generation) -> None:
        """Remove the generation's sequences from the batch; nothing if they have ended."""
        self._batch.discard(generation)
        generation.fail(Disconnected())

    async def operate(self) -> None:
        """Carry out an operator's call, which does nothing here but take its time."""
        seconds = self._faults.slow_operations_s
        self._still_until = asyncio.get_running_loop().time() + seconds
        await asyncio.sleep(seconds)

    async def _run(self) -> None:
        try:
            await self._take_steps()
        except Exception:
            _log.exception("the simulated engine's step loop failed")
        self._die()

    async def _take_steps(self) -> None:
        loop = asyncio.get_running_loop()
        deadline = loop.time()
        while self._steps != self._faults.die_after_steps:
            if self._steps == self._faults.hang_after_steps:
                await loop.create_future()
            if not self._batch:
                self._has_work.clear()
                await self._has_work.wait()
                deadline = loop.time()
            prefill = self._batch.admit()
            # Counted from the last deadline, so that a late wake-up shortens the next step; an
            # overloaded loop does not save up steps.
            deadline = max(deadline + self._step_s(prefill), loop.time(), self._still_until)
            await asyncio.sleep(deadline - loop.time())
            if not self._batch.running:
                continue
            if self._has_prompt(self._faults.kill_on_prompt):
                os.kill(os.getpid(), signal.SIGKILL)
            if self._has_prompt(self._faults.die_on_prompt):
                return
            self._batch.step()
            self._steps += 1
            self.on_step()

    def _step_s(self, prefill_tokens: int) -> float:
        settings = self._settings
        batch_us = settings.sim_step_us_per_seq * len(self._batch.running)
        prefill_us = settings.sim_prefill_us_per_token * prefill_tokens
        return max(settings.sim_step_ms / 1e3, batch_us / 1e6) + prefill_us / 1e6

    def _has_prompt(self, text: str) -> bool:
        """Whether a sequence with this text in its prompt has `kill_after_tokens` tokens."""
        return bool(text) and any(
            sequence.n_generated >= self._faults.kill_after_tokens and text in sequence.prompt.text
            for sequence in self._batch.running
        )

    def _die(self) -> None:
        self._dead = True
        for generation in self._batch.clear():
            generation.fail(EngineDeadError())

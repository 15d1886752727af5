"""An engine without a model, for load and fault tests: vLLM's wire formats, timing by arithmetic.

A step of the continuous batch takes `max(sim_step_ms, sim_step_us_per_seq * batch)` plus
`sim_prefill_us_per_token` for every prompt token admitted in it, and gives every running sequence
one token. The same prompt, seed and index give the same answer. Every answer starts with
`[simulated]`. Where the KV cache is full, the sequence admitted last goes back to waiting. A job of
an earlier worker is continued: the tokens of the past are prefilled with the prompt.

`sim_faults` is a comma separated list of `name=value`:

    die_after_steps=N     after N steps the engine is dead: streams end with an `error` chunk and
                          [DONE], other calls with 500, `dead` is True
    die_on_signal=NAME    as die_after_steps, when the process gets this signal (SIGUSR1, SIGUSR2)
    hang_after_steps=N    after N steps no further step is taken; nothing is raised
    kill_on_prompt=TEXT   the process sends itself SIGKILL when a prompt that contains TEXT has
                          reached the batch, before its first token
    die_on_prompt=TEXT    the same, but the engine dies, not the process
    kill_after_tokens=N   with one of these two: not before N tokens of that answer are out (never,
                          if it is not longer)
    slow_start_s=X        `start` takes X seconds
    refuse_past=1         the engine continues no job of an earlier worker
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from starlette.types import Receive, Scope, Send

from shared.fleet.pool import Pool
from shared.platform.settings import SettingsError
from worker.engines.interface import Capacity, Load
from worker.engines.simulated.api import SimulatedApi
from worker.engines.simulated.batch import Batch
from worker.engines.simulated.generation import Disconnected, EngineDeadError, Generation
from worker.engines.simulated.simulated_settings import SimulatedSettings

_log = logging.getLogger(__name__)
_POOL = Pool(served_names=("simulated",), engine="simulated")


class SimulatedEngine:
    """An `Engine` (see `protocol.py`) that runs in the event loop that `start` is called in."""

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
        self._faults = _Faults.parse(settings.sim_faults)
        self._capacity = Capacity(
            max_num_seqs=settings.sim_max_num_seqs,
            kv_cache_tokens=settings.sim_kv_tokens,
            max_model_len=settings.sim_max_model_len,
            max_loras=settings.sim_max_loras,
        )
        self._batch = Batch(settings.sim_max_num_seqs, settings.sim_kv_tokens)
        self._api = SimulatedApi(pool, self, settings.sim_max_loras)
        self._steps = 0
        self._has_work = asyncio.Event()
        self._loop_task: asyncio.Task[None] | None = None
        self._dead = False

    async def start(self) -> None:
        """Start taking steps."""
        if self._faults.die_on_signal is not None:
            loop = asyncio.get_running_loop()
            loop.add_signal_handler(self._faults.die_on_signal, self.close)
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
        return Load(len(self._batch), self._batch.kv_used / self._capacity.kv_cache_tokens)

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
            deadline = max(deadline + self._step_s(prefill), loop.time())
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
        """Whether a sequence with this text in its prompt runs and has its tokens out."""
        return bool(text) and any(
            sequence.n_generated >= self._faults.kill_after_tokens and text in sequence.prompt.text
            for sequence in self._batch.running
        )

    def _die(self) -> None:
        self._dead = True
        for generation in self._batch.clear():
            generation.fail(EngineDeadError())


@dataclass(frozen=True, slots=True)
class _Faults:
    die_after_steps: int | None = None
    die_on_signal: signal.Signals | None = None
    hang_after_steps: int | None = None
    kill_on_prompt: str = ""
    die_on_prompt: str = ""
    kill_after_tokens: int = 0
    slow_start_s: float = 0.0
    refuse_past: int = 0

    @classmethod
    def parse(cls, text: str) -> _Faults:
        """Raises SettingsError for what the module's docstring does not describe."""
        readers: dict[str, Callable[[str], int | float | str]] = {
            "die_after_steps": _positive,
            "die_on_signal": _signal,
            "hang_after_steps": _positive,
            "kill_on_prompt": _not_empty,
            "die_on_prompt": _not_empty,
            "kill_after_tokens": _positive,
            "slow_start_s": _seconds,
            "refuse_past": _positive,
        }
        values: dict[str, int | float | str] = {}
        for item in filter(None, map(str.strip, text.split(","))):
            name, _, value = item.partition("=")
            if name not in readers:
                raise SettingsError(
                    f"FLOTILLA_SIM_FAULTS: there is no fault {name!r}; there are "
                    f"{', '.join(readers)}"
                )
            if name in values:
                raise SettingsError(f"FLOTILLA_SIM_FAULTS: {name} is given twice")
            try:
                values[name] = readers[name](value)
            except ValueError as error:
                raise SettingsError(f"FLOTILLA_SIM_FAULTS: {name}={value!r}: {error}") from error
        if "kill_after_tokens" in values and not values.keys() & {
            "kill_on_prompt",
            "die_on_prompt",
        }:
            raise SettingsError(
                "FLOTILLA_SIM_FAULTS: kill_after_tokens needs kill_on_prompt or die_on_prompt"
            )
        return cls(**values)  # type: ignore[arg-type]


def _signal(value: str) -> signal.Signals:
    if value not in ("SIGUSR1", "SIGUSR2"):
        raise ValueError("must be SIGUSR1 or SIGUSR2")
    return signal.Signals[value]


def _positive(value: str) -> int:
    if not value.isascii() or not value.isdigit() or int(value) < 1:
        raise ValueError("must be a whole number of at least 1")
    return int(value)


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


def _seconds(value: str) -> float:
    seconds = float(value)
    if not 0 <= seconds < float("inf"):
        raise ValueError("must be at least 0 seconds")
    return seconds

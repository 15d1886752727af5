"""The LoRA adapters of one worker: those that its engine holds, and those that are desired."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

from shared.api.operator_actions import LOAD_ADAPTER, UNLOAD_ADAPTER
from shared.fleet.worker_answer import WorkerAnswer
from shared.platform.backoff import Backoff
from worker.core.engine_call import model_cards, refusal
from worker.core.loop import WorkerLoop
from worker.core.registration import Registration
from worker.engines.interface import Engine

log = logging.getLogger("flotilla.adapters")

_RETRY_BASE_S = 2.0
_RETRY_CAP_S = 300.0


class Adapters:
    """Loads and unloads adapters, one at a time."""

    def __init__(self, engine: Engine, loop: WorkerLoop, registration: Registration) -> None:
        self._engine = engine
        self._loop = loop
        self._registration = registration
        self._held: dict[str, str] = {}  # name -> path
        self._loaded_here: set[str] = set()  # not by the engine's own arguments
        self._retries: dict[str, tuple[float, Backoff]] = {}  # of those that can't be loaded
        self._lock = asyncio.Lock()

    async def load(self, options: Mapping[str, Any]) -> WorkerAnswer:
        """Load an adapter; one that is held under this name and path already is no error."""
        async with self._lock:
            return await self._load(options)

    async def unload(self, name: str) -> WorkerAnswer:
        """Unload an adapter; one that is not held is no error."""
        async with self._lock:
            return await self._unload(name)

    async def refresh(self) -> None:
        """Read from the engine what it holds, and announce it."""
        cards = await model_cards(self._engine)
        self._held = {card["id"]: str(card["root"]) for card in cards if card.get("parent")}
        await self._registration.set_models(cards)

    async def follow(self, desired: Mapping[str, Mapping[str, Any]]) -> None:
        """Load and unload until the engine holds the desired adapters.

        One that can't be loaded is tried again later. Those of the engine's own arguments stay.
        """
        async with self._lock:
            self._retries = {name: each for name, each in self._retries.items() if name in desired}
            for name, options in desired.items():
                if self._held.get(name) == options["lora_path"]:
                    self._loaded_here.add(name)
                elif self._is_due(name):
                    await self._load({**options, "load_inplace": name in self._held})
            for name in self._loaded_here - desired.keys():
                await self._unload(name)

    def _is_due(self, name: str) -> bool:
        return name not in self._retries or time.monotonic() >= self._retries[name][0]

    async def _load(self, options: Mapping[str, Any]) -> WorkerAnswer:
        name, path = options["lora_name"], options["lora_path"]
        in_place = options.get("load_inplace", False)
        if not self._engine.capacity.max_loras:
            return refusal(400, "The engine takes no adapters: start it with --enable-lora.")
        if self._held.get(name) == path and not in_place:
            return WorkerAnswer(200, f"LoRA adapter '{name}' is loaded already.")
        answer = await self._loop.operate(LOAD_ADAPTER, options)
        if answer.ok:
            self._loaded_here.add(name)
            self._retries.pop(name, None)
            log.info("loaded the adapter %s from %s in %.2f s", name, path, answer.seconds)
            await self.refresh()
            return answer
        _, backoff = self._retries.get(name, (0.0, Backoff(_RETRY_BASE_S, _RETRY_CAP_S)))
        retry_s = backoff.next_delay_s()
        self._retries[name] = time.monotonic() + retry_s, backoff
        log.warning("the adapter %s could not be loaded: %s", name, answer.message)
        return answer

    async def _unload(self, name: str) -> WorkerAnswer:
        self._loaded_here.discard(name)
        self._retries.pop(name, None)
        if name not in self._held:
            return WorkerAnswer(200, f"LoRA adapter '{name}' is not loaded.")
        answer = await self._loop.operate(UNLOAD_ADAPTER, {"lora_name": name})
        log.info("unloaded the adapter %s: %s", name, answer.message or "done")
        await self.refresh()
        return answer

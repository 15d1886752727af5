"""An engine that several tests' workers use one after the other; it is started once per run."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from worker.engines.interface import Engine


class SharedEngine:
    """Passes all calls on to an engine, but does not start or close it. It may have fewer slots."""

    def __init__(self, engine: Engine, slots: int = 0) -> None:
        capacity = engine.capacity
        slots = slots or capacity.max_num_seqs
        object.__setattr__(self, "_engine", engine)
        object.__setattr__(self, "capacity", replace(capacity, max_num_seqs=slots))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._engine, name, value)

    async def start(self) -> None:
        """Do nothing: the engine is already started."""

    async def __call__(self, *arguments: Any) -> None:
        await self._engine(*arguments)

    def close(self) -> None:
        """Leave the engine open; only remove the worker's callback."""
        self._engine.on_step = lambda: None

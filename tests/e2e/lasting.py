"""A shared engine for workers that tests start and stop."""

from __future__ import annotations

from typing import Any

from worker.engines.protocol import Engine


class Lasting:
    """An engine that a worker can't start or close: it stays up for the next test."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "_engine":
            object.__setattr__(self, name, value)
        else:
            setattr(self._engine, name, value)

    async def start(self) -> None: ...

    async def __call__(self, *arguments: Any) -> None:
        await self._engine(*arguments)

    def close(self) -> None:
        self._engine.on_step = lambda: None

"""Room in the engine for requests of several sequences: choices (`n`), prompts, beams.

A worker claims jobs as long as the engine has free slots, and one job may have hundreds of
sequences. All such sequences together take at most 7 of 8 slots; the others wait here, so that
requests of one sequence find a slot.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

_KEPT_FREE = 8
"""One slot of so many is kept for requests of one sequence."""


class Room:
    """How many sequences of such requests may be in the engine. First come, first served."""

    def __init__(self, slots: int) -> None:
        self.size = max(1, slots - max(1, slots // _KEPT_FREE))
        self._taken = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def enter(self, sequences: int) -> int:
        """Wait for room; returns what to give to `leave`."""
        needed = min(sequences, self.size)
        if not self._waiting and self._taken + needed <= self.size:
            self._taken += needed
            return needed
        turn = asyncio.get_running_loop().create_future()
        self._waiting.append((needed, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # its turn had come just before
                self.leave(needed)
            else:
                turn.cancel()
                self._admit()
            raise
        return needed

    def leave(self, needed: int) -> None:
        """Give room back."""
        self._taken -= needed
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            needed, turn = self._waiting[0]
            if not turn.cancelled():
                if self._taken + needed > self.size:
                    return
                self._taken += needed
                turn.set_result(None)
            self._waiting.popleft()


class WideEngine:
    """An AsyncLLM whose calls wait for room."""

    def __init__(self, engine: Any, slots: int) -> None:
        self._engine = engine
        self.room = Room(slots)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """As AsyncLLM.generate."""
        taken = await self.room.enter(sampling_params.n)
        try:
            outputs = self._engine.generate(prompt, sampling_params, request_id, **options)
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        finally:
            self.room.leave(taken)

    async def encode(
        self, prompt: Any, pooling_params: Any, request_id: str, **options: Any
    ) -> AsyncGenerator[Any, None]:
        """As AsyncLLM.encode."""
        taken = await self.room.enter(1)
        try:
            outputs = self._engine.encode(prompt, pooling_params, request_id, **options)
            async with aclosing(outputs):
                async for output in outputs:
                    yield output
        finally:
            self.room.leave(taken)

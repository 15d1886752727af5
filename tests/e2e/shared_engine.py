"""The run's engine, lent to a worker in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from prometheus_client import REGISTRY

from tests.harness.settings import Settings
from worker.engines.interface import Engine

if TYPE_CHECKING:
    from worker.engines.vllm.engine import VllmEngine


async def close(engine: VllmEngine) -> None:
    """Close an engine of this process, and wait for the process that tries its grammars."""
    engine.close()
    grammars = engine._grammars
    if grammars is not None and grammars._process is not None:
        await grammars._process.communicate()
        await asyncio.sleep(0.1)  # the event loop forgets its pipes


async def started_with_reasoning() -> VllmEngine:
    """A further engine, with a reasoning parser for the demo model; the first one's metrics stay.

    That model does not reason: its text up to the first comma is called reasoning.
    """
    from vllm.reasoning import ReasoningParserManager
    from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

    from worker.engines.vllm.engine import VllmEngine

    class Parser(DeepSeekR1ReasoningParser):  # type: ignore[misc]
        start_token, end_token = "<tool_call>", ","

    ReasoningParserManager.register_module("demo", module=Parser)
    settings = Settings(engine_args="--dtype float32 --reasoning-parser demo")
    engine = VllmEngine(settings, settings.described.own)
    # vLLM takes the metrics of an earlier engine out of the registry, and other tests read these.
    before = set(REGISTRY._collector_to_names)
    await engine.start()
    after = set(REGISTRY._collector_to_names)
    for collector in after - before:
        REGISTRY.unregister(collector)
    for collector in before - after:
        REGISTRY.register(collector)
    return engine


class SharedEngine:
    """Passes all calls on to an engine, but does not start or close it."""

    def __init__(self, engine: Engine) -> None:
        object.__setattr__(self, "_engine", engine)

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

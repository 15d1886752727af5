"""A request's queue in vLLM, whose outputs may be taken before they are in it.

vLLM's output handler puts what a request generates into a queue of that request and wakes its task.
A task that knows what becomes of the next outputs has them taken instead, and sleeps on.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.v1.engine import async_llm
from vllm.v1.engine.output_processor import RequestOutputCollector

from shared.platform.fast_paths import FastPath, attributes_missing, parameters_differ


def _problem() -> str:
    if getattr(async_llm, "RequestOutputCollector", None) is not RequestOutputCollector:
        return "vllm.v1.engine.async_llm makes other collectors than RequestOutputCollector"
    collector: Any = RequestOutputCollector
    return attributes_missing(collector, ["output"]) or parameters_differ(
        collector.put, "self output"
    )


COLLECTOR = FastPath("vLLM's RequestOutputCollector", _problem)


class Collector(RequestOutputCollector):  # type: ignore[misc]
    """Takes the place of vLLM's own once `install` has been called.

    `tap`, where set, is asked for every output (or error) as long as the queue is empty and it
    answers True: taken. The first that it declines, and all that follow, are queued as ever.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.tap: Callable[[Any], bool] | None = None
        LATEST.set(self)

    def put(self, output: Any) -> None:
        """As RequestOutputCollector.put."""
        if self.tap is not None:
            if self.output is None and self.tap(output):
                return
            self.tap = None  # what follows waits behind this one
        super().put(output)


LATEST: ContextVar[Collector | None] = ContextVar("LATEST", default=None)
"""That of the request which was handed to vLLM last in this context."""


def install() -> None:
    """Have vLLM make its collectors with `Collector`, where fast paths are enabled."""
    if COLLECTOR.enabled():
        async_llm.RequestOutputCollector = Collector

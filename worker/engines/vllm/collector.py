"""vLLM's collector of one request's outputs, with an interceptor in front of it.

Token path: engine step -> here -> stream_chunks.py.

vLLM's output handler puts what a request generates into the request's collector and wakes its task.
An interceptor handles plain deltas where they come, so the task is not woken for them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from vllm.v1.engine import async_llm
from vllm.v1.engine.output_processor import RequestOutputCollector


class Collector(RequestOutputCollector):  # type: ignore[misc]
    """Replaces vLLM's own once `install` has been called.

    `interceptor`, if set, is called with each output (or error) while the collector is empty. True:
    it has handled the output. The first that it has not, and all that follow, are collected.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.interceptor: Callable[[Any], bool] | None = None
        LATEST.set(self)

    def put(self, output: Any) -> None:
        """As RequestOutputCollector.put."""
        if self.interceptor is not None:
            if self.output is None and self.interceptor(output):
                return
            self.interceptor = None  # what follows must not overtake this one
        super().put(output)


LATEST: ContextVar[Collector | None] = ContextVar("LATEST", default=None)
"""The collector of the request that was given to vLLM last in this context."""


def install() -> None:
    """Have vLLM make its collectors with `Collector`."""
    async_llm.RequestOutputCollector = Collector

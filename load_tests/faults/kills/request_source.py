"""Where the clients of a run get their requests and the right answers to them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import replace

from load_tests.faults.kills.request_classes import (
    CLASSES,
    VLLM_CLASSES,
    KillRequest,
    Mode,
    RequestClass,
    draw_mode,
    draw_request,
    make_request,
)
from load_tests.faults.kills.undisturbed import Expected, Undisturbed

_OF_EACH = 5
"""Requests of each class with real vLLM."""


class RequestSource:
    """Draws requests. `start` it in an event loop, `close` it at the end.

    Each request is a new one; the simulated engine computes its answer when it is drawn.
    """

    def __init__(self) -> None:
        self.classes: Sequence[RequestClass] = ()
        """The classes that take part, known after `start`."""
        self._undisturbed = Undisturbed()

    async def start(self) -> None:
        """Start the engine; leave out the classes that it refuses."""
        await self._undisturbed.start()
        self.classes = await self._undisturbed.served(CLASSES)

    async def draw(self, rng: random.Random, tag: str) -> tuple[KillRequest, Expected]:
        """Draw a request; return it with its answer."""
        request = draw_request(rng, tag, tuple(self.classes))
        return request, await self._undisturbed.expected(request)

    def close(self) -> None:
        """Stop the engine."""
        self._undisturbed.close()


class VllmSource(RequestSource):
    """Some requests of each class, answered before the kills so that the engine is gone by then."""

    def __init__(self, seed: int) -> None:
        self.classes = VLLM_CLASSES
        self._undisturbed = Undisturbed(vllm=True)
        self._rng = random.Random(seed)
        self._known: list[tuple[KillRequest, Expected]] = []

    async def start(self) -> None:
        """Answer all requests, then stop the engine."""
        requests = [
            make_request(each, self._rng, f"{each.name} {n}", Mode.CALL)
            for each in self.classes
            for n in range(_OF_EACH)
        ]
        before = dict(os.environ)
        os.environ["VLLM_LOGGING_LEVEL"] = "ERROR"
        try:
            await self._undisturbed.start()
            answers = await asyncio.gather(*map(self._undisturbed.expected, requests))
        finally:
            self._undisturbed.close()
            os.environ.clear()  # of the variables that the engine sets; workers inherit them
            os.environ.update(before)
        self._known = list(zip(requests, answers, strict=True))
        for request, expected in self._known:
            if expected.answer.status != 200:
                raise ValueError(f"vLLM refuses {request.class_name}: {expected.answer.body!r}")

    async def draw(self, rng: random.Random, tag: str) -> tuple[KillRequest, Expected]:
        """Draw one of these requests again; the tag is not part of its prompt."""
        request, expected = rng.choice(self._known)
        return replace(request, tag=tag, mode=draw_mode(rng)), expected

    def close(self) -> None:
        """The engine has stopped."""

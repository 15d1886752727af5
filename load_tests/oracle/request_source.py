"""Where clients get their requests and the right answers to them."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Mapping, Sequence
from dataclasses import replace

from load_tests.oracle.request_classes import (
    CLASSES,
    MODES,
    VLLM_CLASSES,
    Mode,
    Request,
    RequestClass,
    draw_mode,
    make_request,
)
from load_tests.oracle.undisturbed import Expected, Undisturbed

_OF_EACH = 5
"""Requests of each class with real vLLM."""


class RequestSource:
    """Draws requests. `start` it in an event loop, `close` it at the end.

    Each request is a new one; the simulated engine computes its answer when it is drawn.
    """

    def __init__(self, classes: Sequence[RequestClass] = CLASSES) -> None:
        self.classes = classes
        """The classes that take part; after `start` those that the engine does not refuse."""
        self._undisturbed = Undisturbed()

    async def start(self) -> None:
        """Start the engine; leave out the classes that it refuses."""
        await self._undisturbed.start()
        self.classes = await self._undisturbed.served(self.classes)

    async def draw(
        self,
        rng: random.Random,
        tag: str,
        modes: Mapping[Mode, int] = MODES,
        classes: Sequence[RequestClass] = (),
    ) -> tuple[Request, Expected]:
        """Draw a request, of `classes` if given; return it with its answer."""
        chosen = rng.choice(classes or self.classes)
        return await self.answered(make_request(chosen, rng, tag, draw_mode(rng, modes)))

    async def answered(self, request: Request) -> tuple[Request, Expected]:
        """Return a request with its answer."""
        return request, await self._undisturbed.expected(request)

    def close(self) -> None:
        """Stop the engine."""
        self._undisturbed.close()


class VllmSource(RequestSource):
    """Some requests of each class, answered before the run so that the engine is gone by then."""

    def __init__(self, seed: int, classes: Sequence[RequestClass] = VLLM_CLASSES) -> None:
        self.classes = classes
        self._undisturbed = Undisturbed(vllm=True)
        self._rng = random.Random(seed)
        self._known: list[tuple[Request, Expected]] = []

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
            self._known = list(await asyncio.gather(*map(self.answered, requests)))
        finally:
            self._undisturbed.close()
            os.environ.clear()  # of the variables that the engine sets; workers inherit them
            os.environ.update(before)
        for request, expected in self._known:
            if expected.answer.status != 200:
                raise ValueError(f"vLLM refuses {request.class_name}: {expected.answer.body!r}")

    async def draw(
        self,
        rng: random.Random,
        tag: str,
        modes: Mapping[Mode, int] = MODES,
        classes: Sequence[RequestClass] = (),
    ) -> tuple[Request, Expected]:
        """Draw one of these requests again; the tag is not part of its prompt."""
        request, expected = rng.choice(self._known)
        return replace(request, tag=tag, mode=draw_mode(rng, modes)), expected

    def close(self) -> None:
        """The engine has stopped."""

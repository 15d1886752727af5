"""Requests before the first client's."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from worker.engines.vllm.warm_up import warm_up

pytestmark = pytest.mark.vllm  # shares the import


class Engine:
    """Records its requests; each ends with `error`, if there is one."""

    def __init__(self, error: Exception | None = None, *, errored: bool = False) -> None:
        self.asked: list[tuple[int | None, int | None]] = []
        self.errored = errored
        self._error = error

    async def generate(self, prompt: Any, params: Any, request_id: str) -> AsyncIterator[None]:
        assert params.max_tokens == 1
        self.asked.append((params.logprobs, params.prompt_logprobs))
        yield None
        if self._error:
            raise self._error


async def test_both_kinds_of_log_probabilities_are_compiled() -> None:
    engine = Engine()
    await warm_up(engine)
    assert engine.asked == [(1, None), (None, 1)]


async def test_a_model_that_refuses_them_starts() -> None:
    engine = Engine(ValueError("no prompt_logprobs"))
    await warm_up(engine)
    assert len(engine.asked) == 2


async def test_an_engine_that_dies_of_it_does_not_start() -> None:
    with pytest.raises(RuntimeError):
        await warm_up(Engine(RuntimeError("dead"), errored=True))

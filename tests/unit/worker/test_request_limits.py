"""What one request may ask of the engine."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from worker.engines.interface import JOB, JobFacts
from worker.engines.vllm.request_limits import RequestLimits, TooManyLogprobs


class Grammars:
    """Records what it is asked."""

    def __init__(self) -> None:
        self.checked: list[Any] = []

    async def check(self, structured: Any, tenant: str) -> None:
        self.checked.append((structured, tenant))


def params(prompt_logprobs: int | None = None, structured: Any = None) -> Any:
    return SimpleNamespace(prompt_logprobs=prompt_logprobs, structured_outputs=structured)


async def test_prompt_logprobs() -> None:
    limits = RequestLimits(Grammars(), 1000, 500)  # type: ignore[arg-type]
    await limits.check(params(), 10**6)
    await limits.check(params(0), 1000)
    await limits.check(params(9), 100)
    await limits.check(params(-1), 2)  # the whole vocabulary
    for alternatives, tokens in ((0, 1001), (9, 101), (-1, 3)):
        with pytest.raises(TooManyLogprobs, match="at most 1000"):
            await limits.check(params(alternatives), tokens)


async def test_grammars() -> None:
    grammars = Grammars()
    limits = RequestLimits(grammars, 1000, 500)  # type: ignore[arg-type]
    await limits.check(params(), 5)
    assert grammars.checked == []
    JOB.set(JobFacts("team"))
    await limits.check(params(structured="a grammar"), 5)
    assert grammars.checked == [("a grammar", "team")]

"""The requests before a benchmark: they show that it can work, and how long prompts are."""

from __future__ import annotations

from gateway.bench.call import Target
from gateway.bench.load import session
from gateway.bench.prompts import Prompt, PromptLength, random_text

_WORDS = (16, 144)
_OUTPUT_TOKENS = 1


class TrialError(Exception):
    """The server refuses what the benchmark would send; `status` is 0 if it does not answer."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


async def prompt_length(target: Target, timeout_s: float | None) -> PromptLength:
    """How many tokens a prompt of random words has here. Raises TrialError."""
    found = []
    async with session(timeout_s) as connections:
        for n_words in _WORDS:
            prompt = Prompt(random_text(n_words, "trial"), _OUTPUT_TOKENS)
            outcome = await target.call(connections, prompt)
            if outcome.error:
                raise TrialError(outcome.error, outcome.status)
            found.append((n_words, outcome.prompt_tokens))
    return PromptLength.measured(found[0], found[1])

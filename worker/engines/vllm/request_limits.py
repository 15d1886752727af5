"""Checks of a request just before vLLM's engine gets it, when its prompt is tokenized."""

from __future__ import annotations

from typing import Any

from worker.engines.interface import JOB
from worker.engines.vllm.grammar_check import GrammarChecker
from worker.engines.vllm.trials import TrialsBusy


class TooManyLogprobs(ValueError):
    """A prompt or an answer has too many. VLLM answers a ValueError with 400."""


class RequestLimits:
    """What one request may ask of the engine."""

    def __init__(
        self,
        grammars: GrammarChecker,
        max_prompt_logprobs: int,
        vocab_size: int,
        max_logprobs_at_once: int = 1 << 30,
    ) -> None:
        """`max_prompt_logprobs`: tokens of a prompt times alternatives for each.

        `max_logprobs_at_once`: of an answer that is not streamed.
        """
        self._max_logprobs_at_once = max_logprobs_at_once
        self._grammars = grammars
        self._max_prompt_logprobs = max_prompt_logprobs
        self._vocab_size = vocab_size

    async def check(self, params: Any, prompt_tokens: int) -> None:
        """Raises TooManyLogprobs, GrammarRefused, or vLLM's error with status 503.

        `params`: vLLM's SamplingParams.
        """
        if params.prompt_logprobs is not None:
            self._check_logprobs(params.prompt_logprobs, prompt_tokens)
        if params.structured_outputs is not None:
            try:
                await self._grammars.check(params.structured_outputs, JOB.get().tenant)
            except TrialsBusy as error:
                from worker.engines.vllm.error_response import unavailable

                raise unavailable("New grammars can't be checked now; try again.") from error

    def exceeds(self, n_logprobs: int) -> bool:
        """Whether these are too many for an answer that is not streamed."""
        return n_logprobs > self._max_logprobs_at_once

    def check_answer(self, n_logprobs: int) -> None:
        """Raises TooManyLogprobs if these are too many for an answer that is not streamed."""
        if self.exceeds(n_logprobs):
            raise TooManyLogprobs(
                f"The answer has more than {self._max_logprobs_at_once} log probabilities, the "
                "most in one that is not streamed. Set `stream`, or ask for less."
            )

    def _check_logprobs(self, alternatives: int, prompt_tokens: int) -> None:
        # vLLM makes an object of each on the event loop, and all other requests wait.
        each = self._vocab_size if alternatives < 0 else alternatives + 1
        if prompt_tokens * each > self._max_prompt_logprobs:
            raise TooManyLogprobs(
                f"`prompt_logprobs` asks for {prompt_tokens} * {each} log probabilities; at most "
                f"{self._max_prompt_logprobs} are allowed in one request. Ask for fewer "
                "alternatives, or send a shorter prompt."
            )

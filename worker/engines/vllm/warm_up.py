"""Has vLLM compile what it compiles at the first request that needs it, before clients come.

While it compiles, all requests in the engine wait: 3.7 s for log probabilities of a prompt, on a
CPU.
"""

from __future__ import annotations

import logging
from typing import Any

log = logging.getLogger("flotilla.engine")

_PROMPT = {"prompt_token_ids": [1, 1]}


async def warm_up(engine: Any) -> None:
    """Generate a token with log probabilities, and one with those of its prompt.

    `engine`: an AsyncLLM that generates text.
    """
    from vllm.sampling_params import SamplingParams

    for params in (
        SamplingParams(max_tokens=1, temperature=1.0, logprobs=1),
        SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1),
    ):
        try:
            async for _ in engine.generate(_PROMPT, params, f"warm-up-{params.logprobs}"):
                pass
        except Exception as error:
            if engine.errored:
                raise
            log.info("a request to warm up was refused: %s", error)

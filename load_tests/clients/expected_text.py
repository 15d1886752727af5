"""The text with which the simulated engine answers a request: a function of the request alone."""

from __future__ import annotations

from typing import Any

from worker.engines.simulated.generation import Generation
from worker.engines.simulated.request import ChatBody
from worker.engines.simulated.sampling import sampling


async def expected_text(body: dict[str, Any]) -> str:
    """Return the whole answer to a chat completion request."""
    chat = ChatBody.model_validate(body)
    generation = Generation(stream=False, journal=None)
    generation.add(0, chat.prompt(), sampling(chat, None), chat.max_tokens or 1)
    (sequence,) = generation.sequences
    while sequence.finish_reason is None:
        sequence.advance()
    return "".join(delta.text for delta in await generation.next_deltas())

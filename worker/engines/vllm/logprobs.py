"""Converts vLLM's logprobs to those in a job's journal, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vllm.logprobs import Logprob, create_sample_logprobs

from worker.engines.interface import Logprobs


def to_journal(logprobs: Any) -> list[Any]:
    """The journal's form of vLLM's logprobs; the first position of a prompt has none."""
    return [
        [(token, of.logprob, of.rank, of.decoded_token) for token, of in position.items()]
        if position
        else None
        for position in logprobs
    ]


def from_journal(logprobs: Sequence[Any], *, flat: bool) -> Any:
    """In vLLM's own form, of which it has two (`SamplingParams.flat_logprobs`)."""
    positions = create_sample_logprobs(flat)
    for position in logprobs:
        positions.append(
            {token: Logprob(logprob, rank, _text(text)) for token, logprob, rank, text in position}
            if position
            else None
        )
    return positions


def total(logprobs: Logprobs) -> float:
    """The sum over the generated tokens, which come first in their positions."""
    return sum(position[0][1] for position in logprobs)


def _text(text: str | bytes | None) -> str | None:
    return text.decode() if isinstance(text, bytes) else text

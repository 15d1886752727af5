"""The limit of an answer's size: sequences, tokens and alternatives together.

Each may be within its own limit, and the answer still so large that storing and sending it delays
all others. The size is an upper estimate from the request alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shared.job.errors import BadRequest

_TOKEN_BYTES = 8
_ALTERNATIVE_BYTES = 80
"""`{"token": " word", "logprob": -12.345678, "bytes": [32, 119, 111, 114, 100]}`"""
_CHARS_PER_TOKEN = 4
_COMPLETION_TOKENS = 16
"""vLLM's default `max_tokens` of a completion."""
_ASSUMED_TOKENS = 1024
"""Of another answer without `max_tokens`, which rarely uses the rest of the context."""
_MOST_TOKENS = 1 << 20
"""About the longest context; vLLM itself refuses more tokens than its model's."""
_MULTIPLIERS = frozenset({"n", "logprobs", "top_logprobs", "prompt_logprobs"})
"""Fields without which an answer has a text for each prompt, and nothing else."""
_MAX_TOKENS = ("max_completion_tokens", "max_output_tokens", "max_tokens")


def most_output(fields: Mapping[str, Any]) -> int | None:
    """The tokens that a request allows all its choices together; None: it does not say."""
    get = fields.get
    asked = get("max_completion_tokens") or get("max_output_tokens") or get("max_tokens")
    tokens, n = _number(asked) if asked else 0, get("n")
    return (tokens * max(1, _number(n)) if n else tokens) or None


def check_answer_size(
    fields: Mapping[str, Any], n_prompts: int, most_alternatives: int, limit: int, at_once: int
) -> None:
    """Raises BadRequest if a request to generate may have an answer of more than `limit` bytes.

    `most_alternatives`: for -1, which asks for all. `at_once`: log probabilities of an answer that
    is not streamed: vLLM makes them in one turn of its event loop. Without `max_tokens` their
    number is not known here; the worker counts them.
    """
    if _MULTIPLIERS.isdisjoint(fields) and n_prompts * _MOST_TOKENS * _TOKEN_BYTES <= limit:
        return  # the usual case
    n = n_prompts * max(1, _number(fields.get("n")))
    tokens = next((_number(fields[name]) for name in _MAX_TOKENS if fields.get(name)), 0)
    assumed = _COMPLETION_TOKENS if "prompt" in fields else _ASSUMED_TOKENS
    alternatives = _alternatives(fields, most_alternatives)
    n_tokens = n * min(tokens or assumed, _MOST_TOKENS)
    size = n_tokens * (_TOKEN_BYTES + _ALTERNATIVE_BYTES * alternatives)
    is_known = tokens or "prompt" in fields
    if is_known and n_tokens * alternatives > at_once and not fields.get("stream"):
        raise BadRequest(
            f"The answer may have {n_tokens * alternatives} log probabilities, at most {at_once} "
            "are allowed in an answer that is not streamed. Set `stream`, or ask for less.",
            "stream",
        )
    prompt_alternatives = _of_prompt(fields, most_alternatives)
    if prompt_alternatives:
        size += _prompt_tokens(fields) * _ALTERNATIVE_BYTES * prompt_alternatives
    if size > limit:
        shown = f"{tokens}" if tokens else f"{assumed} (`max_tokens` is not set)"
        raise BadRequest(
            f"The answer may become {size} bytes long, at most {limit} are allowed: {n} sequences "
            f"of {shown} tokens with {alternatives} log probabilities each, and "
            f"{prompt_alternatives} for each token of the prompt. Ask for less of one of them.",
            "n" if n > n_prompts else "max_tokens",
        )


def _number(value: Any) -> int:
    return value if type(value) is int else 0


def _alternatives(fields: Mapping[str, Any], most: int) -> int:
    """Log probabilities for each token of the answer, its own included."""
    wanted, top = fields.get("logprobs"), _number(fields.get("top_logprobs"))
    if wanted is False or (wanted is None and not top):
        return 0
    given = _number(wanted)  # of `true`: 0
    ids = fields.get("logprob_token_ids")
    found = most if given < 0 or top < 0 else max(given, top)
    return 1 + max(found, len(ids) if isinstance(ids, list) else 0)


def _of_prompt(fields: Mapping[str, Any], most: int) -> int:
    """Log probabilities for each token of the prompt, its own included."""
    wanted = fields.get("prompt_logprobs")
    if wanted is None and fields.get("echo"):
        wanted = fields.get("logprobs")
    if type(wanted) is not int:
        return 0
    return 1 + (wanted if wanted >= 0 else most)


def _prompt_tokens(fields: Mapping[str, Any]) -> int:
    """About how many tokens all prompts have together."""
    prompt = fields.get("prompt")
    if isinstance(prompt, str):
        return len(prompt) // _CHARS_PER_TOKEN
    if not isinstance(prompt, list):
        return 0
    lists = sum(len(each) for each in prompt if isinstance(each, list))
    texts = sum(len(each) for each in prompt if isinstance(each, str))
    return lists + texts // _CHARS_PER_TOKEN + (len(prompt) if not lists + texts else 0)

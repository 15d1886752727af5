"""What a request asks of its generation, checked as in vLLM: sampling, the length of its answer."""

from __future__ import annotations

from worker.engines.simulated.generation import TOKENS, Prompt, Sampling
from worker.engines.simulated.refusal import RefusedError, bad_value
from worker.engines.simulated.request import Body

_MAX_LOGPROBS = 20
_MAX_N = 16384


def sampling(body: Body, logprobs: int | None) -> Sampling:
    """The sampling parameters; raises RefusedError in the order and words of vLLM's own."""
    n = 1 if body.n is None else body.n
    temperature = 1.0 if body.temperature is None else body.temperature
    top_p = 1.0 if body.top_p is None else body.top_p
    stops = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    if not 1 <= n <= _MAX_N:
        bound = "at least 1" if n < 1 else f"at most {_MAX_N}"
        raise RefusedError(f"n must be {bound}, got {n}.")
    if temperature < 0:
        message = f"temperature must be non-negative, got {temperature}."
        raise bad_value(message, "temperature", temperature)
    if not 0 < top_p <= 1:
        raise bad_value(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
    if "" in stops:
        raise RefusedError("stop cannot contain an empty string.")
    if temperature == 0 and n > 1:
        raise RefusedError(f"n must be 1 when using greedy sampling, got {n}.")
    if logprobs is not None and not 0 <= logprobs <= _MAX_LOGPROBS:
        wanted = len(TOKENS) if logprobs == -1 else logprobs
        message = (
            f"Requested sample logprobs of {wanted}, which is greater than max allowed: "
            f"{_MAX_LOGPROBS}"
        )
        raise bad_value(message, "logprobs", wanted)
    return Sampling(
        n=n,
        seed=body.seed,
        stop=stops,
        include_stop=body.include_stop_str_in_output,
        ignore_eos=body.ignore_eos,
        min_tokens=body.min_tokens,
    )


def room(prompt: Prompt, max_tokens: int | None, max_model_len: int) -> int:
    """How many tokens the answer may have; raises RefusedError, as vLLM does, if there are none."""
    if max_tokens is not None and max_tokens > max_model_len:
        message = (
            f"max_tokens={max_tokens} cannot be greater than max_model_len={max_model_len}. "
            "Please request fewer output tokens."
        )
        raise bad_value(message, "max_tokens", max_tokens)
    if prompt.n_tokens > max_model_len:
        message = (
            f"This model's maximum context length is {max_model_len} tokens. However, your prompt "
            f"contains {prompt.n_tokens} input tokens, which exceeds this limit even without any "
            "output tokens. Please reduce the length of the input prompt."
        )
        raise bad_value(message, "input_tokens", prompt.n_tokens)
    left = max_model_len - prompt.n_tokens
    left = left if max_tokens is None else min(left, max_tokens)
    if left < 1:
        raise bad_value(f"max_tokens must be at least 1, got {left}.", "max_tokens", left)
    return left

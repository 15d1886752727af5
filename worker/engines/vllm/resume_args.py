"""What a continued request carries into vLLM's processes: `SamplingParams.extra_args`.

Two keys, one for each way to continue. Clients can set extra_args too (`vllm_xargs`), but not
these: `without` removes them from every request before the engine gets it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PREFILL = "flotilla-prefill-resume"
"""For prefill_resume.py: `{"tokens": [...], "logprob": sum or None, "max_model_len": n}`."""
FORCED = "flotilla-forced-replay"
"""For forced_replay.py: the list of tokens."""


def without(params: Any) -> Any:
    """`params`, or a copy without our keys if it has any."""
    extra = params.extra_args
    if not extra or not (PREFILL in extra or FORCED in extra):
        return params
    cleaned = params.clone()
    cleaned.extra_args = {k: v for k, v in extra.items() if k not in (PREFILL, FORCED)}
    return cleaned


def prefilled(params: Any) -> Mapping[str, Any] | None:
    """The value of PREFILL; None for all other requests."""
    extra = getattr(params, "extra_args", None)
    return extra.get(PREFILL) if extra else None


def forced(params: Any) -> list[int]:
    """The value of FORCED; empty for all other requests."""
    extra = getattr(params, "extra_args", None)
    return extra.get(FORCED) or [] if extra else []

"""Forced replay: a logits processor has a request generate the tokens of its past once more.

The plain way to continue an answer, through vLLM's public interface for custom logits processors:
one engine step per token of the past, in which the grammar, the penalties and the random state
advance as they did. prefill_resume.py needs one step for all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

from shared.platform import settings as environment
from worker.engines.vllm.resume_args import forced

try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsProcessor as RunnerV2LogitsProcessor,
    )
except ImportError:  # a release whose model runner V2 takes none
    RunnerV2LogitsProcessor = None


def choose_model_runner(*, prefills: bool) -> None:
    """Have vLLM use model runner V1 where V2 can't continue answers; before its configuration.

    `prefills`: whether answers are continued by prefill.
    """
    if RunnerV2LogitsProcessor is None and not prefills:
        environment.set_engine_defaults({"VLLM_USE_V2_MODEL_RUNNER": "0"})


def install(config: Any) -> bool:
    """Add the logits processor to vLLM's configuration; False if vLLM would refuse it."""
    if config.speculative_config is not None or config.model_config.runner_type == "pooling":
        return False
    runner_v2 = bool(getattr(config, "use_v2_model_runner", False))
    if runner_v2 and RunnerV2LogitsProcessor is None:
        return False
    name = ForcedReplayV2.__qualname__ if runner_v2 else ForcedReplay.__qualname__
    given = config.model_config.logits_processors or []
    config.model_config.logits_processors = [*given, f"{__name__}:{name}"]
    return True


def installed(config: Any) -> bool:
    """Whether the processor is among those of vLLM's model configuration."""
    return any(str(each).startswith(f"{__name__}:") for each in config.logits_processors or ())


def _force(logits: torch.Tensor, token: int) -> None:
    """Make `token` the only one that can be sampled from this row of logits."""
    own = logits[token].clone()
    logits.fill_(float("-inf"))
    logits[token] = torch.where(torch.isfinite(own), own, 0.0)


class ForcedReplay(AdapterLogitsProcessor):  # type: ignore[misc]
    """For vLLM's model runner V1."""

    def is_argmax_invariant(self) -> bool:
        """See LogitsProcessor: the processor changes which token is the most probable."""
        return False

    def new_req_logits_processor(
        self, params: Any
    ) -> Callable[[list[int], torch.Tensor], torch.Tensor] | None:
        """See AdapterLogitsProcessor: None for requests without a past."""
        tokens = forced(params)

        def force(generated: list[int], logits: torch.Tensor) -> torch.Tensor:
            if len(generated) < len(tokens):
                _force(logits, tokens[len(generated)])
            return logits

        return force if tokens else None


class ForcedReplayV2(RunnerV2LogitsProcessor or object):  # type: ignore[misc]
    """For vLLM's model runner V2, which keeps requests in numbered slots."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._prompt_lengths = req_states.prompt_len
        self._forced: dict[int, list[int]] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """See vLLM's LogitsProcessor: whether the request in this slot has a past."""
        self._forced.pop(req_idx, None)
        if tokens := forced(sampling_params):
            self._forced[req_idx] = tokens
        return bool(tokens)

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See vLLM's LogitsProcessor. Without speculative decoding a row is a request."""
        if self._forced:
            for row, slot in enumerate(ctx.idx_mapping_np.tolist()):
                tokens = self._forced.get(slot, ())
                seen = int(ctx.seq_lens_upper_bound_np[row])
                generated = seen - int(self._prompt_lengths.np[slot])
                if 0 <= generated < len(tokens):
                    _force(logits[row], tokens[generated])
        return logits

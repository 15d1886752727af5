"""The logits processors of continued requests. vLLM loads them in its engine's processes: a public
interface of vLLM.

A request that is continued by prefill has prompt and past as its prompt, so the engine counts the
new tokens only. What has to count the past too is done here, by vLLM's own parts, which get past
and new tokens as the output: penalties, bad words, grammars and, with model runner V1, seeds.
Forced replay is here, too: it has the engine generate the past's tokens once more.

`SamplingParams.extra_args[KEY]` says what a request needs; continuation.py writes it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from vllm.v1.sample.logits_processor import AdapterLogitsProcessor

try:
    from vllm.v1.worker.gpu.sample.logits_processor.interface import (
        LogitsProcessor as RunnerV2LogitsProcessor,
    )
except ImportError:  # a release whose model runner V2 takes none
    RunnerV2LogitsProcessor = None
RUNNER_V2_TAKES_ANY = RunnerV2LogitsProcessor is not None

log = logging.getLogger("flotilla.engine")

KEY = "flotilla"
"""Clients can set extra_args too (`vllm_xargs`), but not this key."""
Step = Callable[[list[int], list[int], torch.Tensor], Any]
"""Changes a row of logits, given the prompt with the past, and the new tokens."""
_NEEDED = {
    "penalties": ("vllm.v1.sample.ops.penalties:apply_all_penalties",),
    "bad_words": ("vllm.v1.sample.ops.bad_words:apply_bad_words",),
    "grammar": (
        "vllm.v1.request:Request",
        "vllm.v1.structured_output:StructuredOutputManager",
        "xgrammar:apply_token_bitmask_inplace",
    ),
    "seed": ("vllm.v1.sample.ops.topk_topp_sampler:TopKTopPSampler",),
}
"""Part of a request -> vLLM's own parts that it is done with."""


def missing() -> dict[str, str]:
    """The parts of requests for which this release of vLLM lacks what they need, and what."""
    return {
        part: place
        for part, places in _NEEDED.items()
        for place in places
        if not hasattr(_module(place), place.partition(":")[2])
    }


def _module(place: str) -> Any:
    with suppress(ImportError):
        return import_module(place.partition(":")[0])
    return None


def asked(params: Any) -> Mapping[str, Any]:
    """What a request needs; empty for most."""
    extra = getattr(params, "extra_args", None)
    return (extra and extra.get(KEY)) or {}


def _fails(need: Mapping[str, Any], error: Exception) -> None:
    """Tell the worker, which ends this request. An error that is raised would end the engine."""
    log.error("a continued request fails", exc_info=error)
    Path(need["errors"]).write_text(f"{type(error).__name__}: {error}")


class Parts:
    """What is done to the rows of one engine's continued requests."""

    def __init__(self, config: Any, device: Any) -> None:
        self._config = config
        self._device = device
        self._grammars: Any = None

    def of(self, params: Any) -> Step | None:
        """What is done to a request's row in each step; None: nothing."""
        need, steps = asked(params), list[Step]()
        past = need.get("past", [])
        try:
            if "grammar" in need:
                steps.append(self._grammar(params, need, past))
            if "bad_words" in need:
                steps.append(self._bad_words(params, past))
            if "penalties" in need:
                steps.append(self._penalties(need["penalties"], past))
        except Exception as error:
            _fails(need, error)
            return None

        def apply(prompt: list[int], new: list[int], row: torch.Tensor) -> torch.Tensor:
            try:
                for step in steps:
                    step(prompt, new, row)
            except Exception as error:
                steps.clear()
                _fails(need, error)
            return row

        return apply if steps else None

    def _penalties(self, values: Sequence[float], past: list[int]) -> Step:
        from vllm.v1.sample.ops.penalties import apply_all_penalties

        each = [torch.tensor([value], device=self._device) for value in values]

        def step(prompt: list[int], new: list[int], row: torch.Tensor) -> None:
            ids = torch.tensor([prompt], device=self._device)
            apply_all_penalties(row[None], ids, *each, [[*past, *new]])

        return step

    def _bad_words(self, params: Any, past: list[int]) -> Step:
        from vllm.v1.sample.ops.bad_words import apply_bad_words

        def step(prompt: list[int], new: list[int], row: torch.Tensor) -> None:
            apply_bad_words(row[None], {0: params.bad_words_token_ids}, [[*past, *new]])

        return step

    def _grammar(self, params: Any, need: Mapping[str, Any], past: list[int]) -> Step:
        """By vLLM's own manager, with a request that has the past as its output."""
        import xgrammar
        from vllm.sampling_params import StructuredOutputsParams
        from vllm.v1.request import Request
        from vllm.v1.structured_output import StructuredOutputManager

        self._grammars = manager = self._grammars or StructuredOutputManager(self._config)
        own = params.clone()
        own.structured_outputs = StructuredOutputsParams(**need["grammar"])
        own.structured_outputs._backend = need["backend"]  # noqa: SLF001
        request = Request("continued", [0], own, None, **need["reasoning"])
        manager.grammar_init(request)  # compiles it in a thread, while the past is computed
        compiled = request.structured_output_request
        assert compiled is not None

        def step(prompt: list[int], new: list[int], row: torch.Tensor) -> None:
            nonlocal request
            if not request.num_output_tokens:
                if isinstance(compiled._grammar, Future):  # noqa: SLF001
                    compiled._grammar.result()  # noqa: SLF001
                first = prompt[: len(prompt) - len(past)]
                request = Request("continued", first, own, None, **need["reasoning"])
                request.structured_output_request = compiled
            for token in [*past, *new][request.num_output_tokens :]:
                request.append_output_token_ids(token)
                if not manager.accept_tokens(request, [token]):
                    raise ValueError("the grammar does not accept what the answer has so far")
            mask = manager.grammar_bitmask({"continued": request}, ["continued"], {})
            xgrammar.apply_token_bitmask_inplace(row[None], torch.from_numpy(mask).to(row.device))

        return step


def _force(row: torch.Tensor, token: int) -> None:
    """Make `token` the only one that can be sampled from this row of logits."""
    own = row[token].clone()
    row.fill_(float("-inf"))
    row[token] = torch.where(torch.isfinite(own), own, 0.0)


class Continued(AdapterLogitsProcessor):  # type: ignore[misc]
    """For model runner V1: forced replay, penalties, bad words, grammars."""

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._parts = Parts(vllm_config, device)

    def is_argmax_invariant(self) -> bool:
        """See LogitsProcessor: the processor changes which token is the most probable."""
        return False

    def new_req_logits_processor(self, params: Any) -> Callable[..., torch.Tensor] | None:
        """See AdapterLogitsProcessor: None for requests that need nothing."""
        tokens = asked(params).get("forced")
        if not tokens:
            return self._parts.of(params)

        def force(generated: list[int], row: torch.Tensor) -> torch.Tensor:
            if len(generated) < len(tokens):
                _force(row, tokens[len(generated)])
            return row

        return force


class ContinuedSeed(AdapterLogitsProcessor):  # type: ignore[misc]
    """For model runner V1: samples a seeded row itself, with vLLM's sampler and a generator that
    has drawn for the past, and then forces that token.

    On a CPU all seeded requests are sampled here: vLLM sets its own generators back after each part
    of a prefill but the last, and torch's raise then, which ends the engine.
    """

    def __init__(self, vllm_config: Any, device: Any, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._config, self._device = vllm_config.model_config, device
        self._sample: Any = None

    def is_argmax_invariant(self) -> bool:
        """See LogitsProcessor. It runs for sampled requests only, after temperature and min_p."""
        return True

    def new_req_logits_processor(self, params: Any) -> Callable[..., torch.Tensor] | None:
        """See AdapterLogitsProcessor: None for requests without a seed."""
        need = asked(params)
        if "seed" not in need:
            return None
        try:
            sample = self._sampling(params, need["seed"], len(need.get("past", ())))
        except Exception as error:
            _fails(need, error)
            return None
        failed = False

        def apply(new: list[int], row: torch.Tensor) -> torch.Tensor:
            nonlocal failed
            try:
                return row if failed else sample(new, row)
            except Exception as error:
                failed = True
                _fails(need, error)
                return row

        return apply

    def _sampling(self, params: Any, seed: int, past: int) -> Any:
        if self._sample is None:
            from vllm.v1.sample.ops.topk_topp_sampler import TopKTopPSampler

            model = self._config
            self._sample = TopKTopPSampler(model.logprobs_mode, model.use_fp64_gumbel)
        draw = self._sample
        generator = torch.Generator(device=self._device).manual_seed(seed)
        k = torch.tensor([params.top_k], device=self._device) if params.top_k > 0 else None
        p = torch.tensor([params.top_p], device=self._device) if params.top_p < 1 else None
        drawn, before = 0, generator.get_state()

        def sample(new: list[int], row: torch.Tensor) -> torch.Tensor:
            nonlocal drawn, before
            position = past + len(new)
            if drawn > position:  # the last draw was for a part of a prefill
                generator.set_state(before)
                drawn -= 1
            while drawn < position:
                draw(torch.zeros_like(row)[None], {0: generator}, None, None)
                drawn += 1
            before, drawn = generator.get_state(), drawn + 1
            token = draw(row[None].clone(), {0: generator}, k, p)[0].view(())
            row.fill_(float("-inf"))
            row[token] = 0.0
            return row

        return sample


class ContinuedV2(RunnerV2LogitsProcessor or object):  # type: ignore[misc]
    """For model runner V2, which keeps requests in numbered slots: forced replay, penalties, bad
    words, grammars. Its noise depends on the seed and the position, so seeds need nothing."""

    def __init__(self, vllm_config: Any, req_states: Any) -> None:
        self._states = req_states
        self._parts = Parts(vllm_config, req_states.device)
        self._steps: dict[int, Step] = {}

    def add_request(self, req_idx: int, sampling_params: Any) -> bool:
        """See vLLM's LogitsProcessor: whether the request in this slot needs anything."""
        self._steps.pop(req_idx, None)
        if tokens := asked(sampling_params).get("forced"):

            def force(prompt: list[int], new: list[int], row: torch.Tensor) -> None:
                if len(new) < len(tokens):
                    _force(row, tokens[len(new)])

            self._steps[req_idx] = force
        elif step := self._parts.of(sampling_params):
            self._steps[req_idx] = step
        return req_idx in self._steps

    def apply(self, logits: torch.Tensor, ctx: Any) -> torch.Tensor:
        """See vLLM's LogitsProcessor. Without speculative decoding a row is a request."""
        for row, slot in enumerate(ctx.idx_mapping_np.tolist()) if self._steps else ():
            if step := self._steps.get(slot):
                prompt = int(self._states.prompt_len.np[slot])
                seen = max(prompt, int(ctx.seq_lens_upper_bound_np[row]))
                ids = self._states.all_token_ids.gpu[slot, :seen].tolist()
                step(ids[:prompt], ids[prompt:], logits[row])
        return logits
